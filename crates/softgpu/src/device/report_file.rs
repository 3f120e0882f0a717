//! Report file: findings and faults of several processes, one JSON object a line.
//!
//! A process that calls `cuInit` appends a `start`, a `launches` for its first kernel, and a
//! `finding` or `fault` when it is detected, so that a process that is killed loses none. A finding
//! of a running kernel is written as it is; when the kernel has ended, a line with the same `id`
//! replaces it, which no longer depends on which thread was first. Equal ones are counted: `count`
//! lines follow when the number has doubled, and at the process's end.
//!
//! Invariants: a line is appended by one system call and begins with a line feed, so that lines of
//! processes do not mix and one that was cut short spoils no other. The file is opened for each
//! line, since a program may close descriptors that it does not know; the descriptor of the first
//! time serves where that fails, since a program may also use up all descriptors, change its root
//! folder or give up its rights. The file is never created: when its owner has removed it, nothing
//! is left behind. The lines of a process are bounded, however long it runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::lock::lock;
use crate::report::{ExecutionPoint, Fault, Finding, FindingActor};

/// Distinct findings and faults of a process that are written; more are only counted.
const MAX_WRITTEN: usize = 1000;

/// The report file, as one process uses it.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    first: FirstDescriptor,
    /// Unique among all copies of the device in all processes.
    process: String,
    launches: AtomicU64,
    reported: Mutex<ReportedFindings>,
}

/// The descriptor by which the file was opened first, and which file that was. The program may have
/// closed it, and its number may be another file's since: it is used only while it is that file,
/// and is never closed here.
#[derive(Debug)]
struct FirstDescriptor {
    file: ManuallyDrop<File>,
    device: u64,
    inode: u64,
}

impl FirstDescriptor {
    fn new(file: File) -> io::Result<FirstDescriptor> {
        let metadata = file.metadata()?;
        Ok(FirstDescriptor {
            file: ManuallyDrop::new(file),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// The file, if the descriptor still is it and it has a name somewhere.
    fn get(&self) -> Option<&File> {
        let metadata = self.file.metadata().ok()?;
        let is_same = metadata.dev() == self.device && metadata.ino() == self.inode;
        (is_same && metadata.nlink() > 0).then_some(&*self.file)
    }
}

/// Findings that are equal for a reader: of the same kind at the same place.
type ReportKey = (String, String, u32);

#[derive(Debug, Default)]
struct ReportedFindings {
    entries: BTreeMap<ReportKey, ReportEntry>,
    /// Occurrences of findings beyond [`MAX_WRITTEN`].
    omitted: WrittenCount,
}

#[derive(Debug)]
struct ReportEntry {
    id: usize,
    /// Whether the line was written after the kernel's end.
    is_final: bool,
    count: WrittenCount,
}

/// A number and its value in the file.
#[derive(Debug, Default)]
struct WrittenCount {
    now: u64,
    written: u64,
}

impl WrittenCount {
    /// Adds to the number; whether it is time to write it.
    fn add(&mut self, more: u64) -> bool {
        self.now = self.now.saturating_add(more);
        self.now / 2 >= self.written
    }
}

impl ReportFile {
    /// Opens `path`, an existing file, and appends that this process uses the software device.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn open(path: &Path) -> io::Result<ReportFile> {
        let pid = std::process::id();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // The program may change its current folder.
        let path = std::path::absolute(path)?;
        let report = ReportFile {
            first: FirstDescriptor::new(open_regular(&path)?)?,
            path,
            process: format!("{pid}-{}", since.unwrap_or_default().as_nanos()),
            launches: AtomicU64::new(0),
            reported: Mutex::default(),
        };
        let mut line = report.line("start");
        line.raw("pid", &pid.to_string());
        let program = std::env::current_exe().unwrap_or_default();
        line.text("program", &program.to_string_lossy());
        report.append(line)?;
        Ok(report)
    }

    /// Counts a kernel that starts.
    pub(crate) fn count_launch(&self) {
        let launches = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        if launches.is_power_of_two() {
            self.write_launches(launches);
        }
    }

    /// Appends a finding of a kernel that is still running, if it is the first of its kind and
    /// place.
    pub(crate) fn write_running(&self, finding: &Finding) {
        let mut reported = lock(&self.reported);
        let key = key_of(finding);
        if reported.entries.len() >= MAX_WRITTEN || reported.entries.contains_key(&key) {
            return;
        }
        let id = reported.entries.len();
        // If it fails now, it is written when the kernel ends.
        if self.append(self.finding_line(finding, id, 1)).is_ok() {
            let count = WrittenCount::default();
            let is_final = false;
            let entry = ReportEntry {
                id,
                is_final,
                count,
            };
            reported.entries.insert(key, entry);
        }
    }

    /// Appends a finding, or counts it with an equal one.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_finding(&self, finding: &Finding) -> io::Result<()> {
        self.write(key_of(finding), finding.count, |id, count| {
            self.finding_line(finding, id, count)
        })
    }

    /// Appends a fault, or counts it with an equal one.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_fault(&self, fault: &Fault) -> io::Result<()> {
        let place = fault.place.as_ref();
        let by = place.map_or_else(String::new, |place| place.kernel.to_string());
        let key = (
            format!("fault: {}", fault.kind.name()),
            by.clone(),
            place.map_or(0, |place| place.ptx_line),
        );
        self.write(key, 1, |id, count| {
            let mut line = self.line("fault");
            line.text("kind", fault.kind.name());
            if let Some(place) = &fault.place {
                line.place("place", place);
            }
            line.finish_finding(id, count, &fault.to_string(), &by);
            line
        })
    }

    /// Appends counts that have changed, at the process's end.
    pub(crate) fn write_counts(&self) {
        let launches = self.launches.load(Ordering::Relaxed);
        if launches > 0 && !launches.is_power_of_two() {
            self.write_launches(launches);
        }
        let mut reported = lock(&self.reported);
        for entry in reported.entries.values_mut() {
            if entry.is_final && entry.count.now != entry.count.written {
                self.write_count(entry);
            }
        }
        if reported.omitted.now != reported.omitted.written {
            self.write_omitted(&mut reported.omitted);
        }
    }

    fn write(
        &self,
        key: ReportKey,
        more: u64,
        line: impl Fn(usize, u64) -> JsonLine,
    ) -> io::Result<()> {
        let mut reported = lock(&self.reported);
        let len = reported.entries.len();
        match reported.entries.get_mut(&key) {
            Some(entry) if entry.is_final => {
                if entry.count.add(more) {
                    self.write_count(entry);
                }
            }
            None if len >= MAX_WRITTEN => {
                if reported.omitted.add(more) {
                    self.write_omitted(&mut reported.omitted);
                }
            }
            before => {
                let id = before.map_or(len, |entry| entry.id);
                self.append(line(id, more))?;
                let entry = ReportEntry {
                    id,
                    is_final: true,
                    count: WrittenCount {
                        now: more,
                        written: more,
                    },
                };
                reported.entries.insert(key, entry);
            }
        }
        Ok(())
    }

    fn finding_line(&self, finding: &Finding, id: usize, count: u64) -> JsonLine {
        let mut line = self.line("finding");
        line.text("kind", &finding.kind.to_string());
        if let FindingActor::Thread(place, _) = &finding.actor {
            line.place("place", place);
        }
        if let Some((_, FindingActor::Thread(place, _))) = &finding.other {
            line.place("other", place);
        }
        // The count has a line of its own in the text.
        let once = Finding {
            count: 1,
            ..finding.clone()
        };
        line.finish_finding(id, count, &once.to_string(), &key_of(finding).1);
        line
    }

    // Counts that cannot be written are too low in the report; the finding itself is there.
    fn write_count(&self, entry: &mut ReportEntry) {
        let mut line = self.line("count");
        line.raw("id", &entry.id.to_string());
        line.raw("count", &entry.count.now.to_string());
        if self.append(line).is_ok() {
            entry.count.written = entry.count.now;
        }
    }

    fn write_omitted(&self, omitted: &mut WrittenCount) {
        let mut line = self.line("omitted");
        line.raw("count", &omitted.now.to_string());
        if self.append(line).is_ok() {
            omitted.written = omitted.now;
        }
    }

    fn write_launches(&self, launches: u64) {
        let mut line = self.line("launches");
        line.raw("count", &launches.to_string());
        self.append(line).unwrap_or_default();
    }

    fn line(&self, event: &str) -> JsonLine {
        let mut line = JsonLine("\n{".to_owned());
        line.text("event", event);
        line.text("process", &self.process);
        line
    }

    fn append(&self, line: JsonLine) -> io::Result<()> {
        let line = line.0 + "}\n";
        match open_regular(&self.path) {
            Ok(file) => write_line(&file, line.as_bytes()),
            Err(error) => match self.first.get() {
                Some(file) => write_line(file, line.as_bytes()),
                None => Err(error),
            },
        }
    }
}

/// Appends a line by one system call.
fn write_line(mut file: &File, line: &[u8]) -> io::Result<()> {
    loop {
        match file.write(line) {
            Ok(written) if written == line.len() => return Ok(()),
            Ok(written) => {
                let all = line.len();
                return Err(io::Error::other(format!(
                    "{written} of {all} bytes were written"
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens whatever stands at the path now to append to it: no wait for a pipe's reader, no other
/// file by a link.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// The kind and place of a finding. Calls of the same function are equal, whatever their numbers.
fn key_of(finding: &Finding) -> ReportKey {
    let name = |actor: &FindingActor| {
        let (name, line) = actor.key();
        let name = name.split(", call ").next().unwrap_or_default();
        (name.to_owned(), line)
    };
    let (mut by, line) = name(&finding.actor);
    if let (FindingActor::Operation(_), Some((_, other))) = (&finding.actor, &finding.other) {
        let (other, line) = name(other);
        by = format!("{by} against {other} {line}");
    }
    (finding.kind.to_string(), by, line)
}

/// A line under construction: an object without its end.
struct JsonLine(String);

impl JsonLine {
    /// Adds a value that is JSON already.
    fn raw(&mut self, name: &str, value: &str) {
        if !self.0.ends_with('{') {
            self.0.push(',');
        }
        self.0.push('"');
        self.0.push_str(name);
        self.0.push_str("\":");
        self.0.push_str(value);
    }

    fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &quoted(value));
    }

    fn place(&mut self, name: &str, place: &ExecutionPoint) {
        let mut object = JsonLine("{".to_owned());
        object.text("kernel", &place.kernel);
        if place.ptx_line != 0 {
            object.raw("ptx_line", &place.ptx_line.to_string());
        }
        if let Some((file, line)) = &place.source {
            object.text("file", file);
            object.raw("line", &line.to_string());
        }
        let numbers = |[x, y, z]: [u32; 3]| format!("[{x},{y},{z}]");
        object.raw("block", &numbers(place.block));
        object.raw("thread", &numbers(place.thread));
        object.0.push('}');
        self.raw(name, &object.0);
    }

    fn finish_finding(&mut self, id: usize, count: u64, text: &str, by: &str) {
        self.raw("id", &id.to_string());
        self.raw("count", &count.to_string());
        self.text("text", text);
        self.text("by", by);
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            control if control < ' ' => {
                // Writing to a String cannot fail.
                write!(quoted, "\\u{:04x}", u32::from(control)).unwrap_or_default();
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FindingKind;

    fn finding(kernel: &str, ptx_line: u32, thread: u32) -> Finding {
        let place = ExecutionPoint {
            kernel: kernel.into(),
            function: None,
            ptx_line,
            opcode: "st.global.u32".into(),
            source: Some(("a \"b\".cu".into(), 7)),
            inlined: None,
            block: [0; 3],
            thread: [thread, 0, 0],
        };
        Finding {
            kind: FindingKind::OutOfBounds,
            access: None,
            actor: FindingActor::Thread(Box::new(place), None),
            note: String::new(),
            allocation: None,
            other: None,
            count: 3,
        }
    }

    /// The lines after the `start`, from the name of the event on.
    fn lines(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty()).skip(1);
        let head = |line: &str| {
            let (event, rest) = line.strip_prefix("{\"event\":\"")?.split_once('"')?;
            let (_, rest) = rest.split_once("\",")?;
            let rest = rest.split(",\"text\"").next()?;
            Some(format!("{event} {}", rest.trim_end_matches('}')))
        };
        lines.map(|line| head(line).unwrap()).collect()
    }

    fn open(folder: &tempfile::TempDir) -> (PathBuf, ReportFile) {
        let path = folder.path().join("report");
        std::fs::write(&path, "").unwrap();
        let report = ReportFile::open(&path).unwrap();
        (path, report)
    }

    #[test]
    fn strings_are_escaped_as_json_requires() {
        assert_eq!(
            quoted("a\"b\\c\n\u{1}\té"),
            "\"a\\\"b\\\\c\\n\\u0001\\u0009é\""
        );
    }

    #[test]
    fn a_report_file_that_was_removed_or_is_no_file_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, report) = open(&folder);
        std::fs::remove_file(&path).unwrap();
        assert!(report.write_finding(&finding("k", 1, 0)).is_err());
        assert!(!path.exists());
        let target = folder.path().join("target");
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(report.write_finding(&finding("k", 1, 0)).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"");
        assert!(ReportFile::open(Path::new("/dev/null")).is_err());
        // When it is there again, nothing is taken for written.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        report.write_finding(&finding("k", 1, 0)).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("finding"));
    }

    #[test]
    fn a_file_that_its_path_no_longer_reaches_is_written_by_the_first_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let (path, report) = open(&folder);
        let moved = folder.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        report.write_finding(&finding("k", 1, 0)).unwrap();
        assert_eq!(lines(&moved).len(), 1);
        assert!(!path.exists());
    }

    #[test]
    fn a_first_descriptor_that_is_another_file_now_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut report) = open(&folder);
        let other = folder.path().join("other");
        std::fs::write(&other, "").unwrap();
        report.first.file = ManuallyDrop::new(open_regular(&other).unwrap());
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        assert!(report.write_finding(&finding("k", 1, 0)).is_err());
        assert_eq!(std::fs::read(&other).unwrap(), b"");
    }

    #[test]
    fn a_finding_is_written_when_detected_and_again_when_its_kernel_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (path, report) = open(&folder);
        report.write_running(&finding("k", 4, 9));
        report.write_running(&finding("k", 4, 8));
        report.write_finding(&finding("k", 4, 0)).unwrap();
        let line = |thread: u32, count: u64| {
            format!(
                "finding \"kind\":\"out of bounds\",\"place\":{{\"kernel\":\"k\",\"ptx_line\":4,\
                 \"file\":\"a \\\"b\\\".cu\",\"line\":7,\"block\":[0,0,0],\
                 \"thread\":[{thread},0,0]}},\"id\":0,\"count\":{count}"
            )
        };
        assert_eq!(lines(&path), [line(9, 1), line(0, 3)]);
    }

    #[test]
    fn equal_findings_are_counted_with_few_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (path, report) = open(&folder);
        for launch in 0..1000 {
            report.count_launch();
            // Another thread each time.
            report.write_finding(&finding("k", 4, launch)).unwrap();
        }
        let before = lines(&path);
        assert!(before.len() <= 1 + 10 + 10, "{before:#?}");
        report.write_counts();
        let after = lines(&path);
        let last: Vec<&str> = after[before.len()..].iter().map(String::as_str).collect();
        assert_eq!(
            last,
            ["launches \"count\":1000", "count \"id\":0,\"count\":3000"]
        );
    }

    #[test]
    fn findings_beyond_the_limit_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (path, report) = open(&folder);
        for line in 0..MAX_WRITTEN as u32 + 20 {
            report.write_running(&finding("k", line, 0));
            report.write_finding(&finding("k", line, 0)).unwrap();
        }
        report.write_counts();
        let lines = lines(&path);
        let findings = lines.iter().filter(|line| line.starts_with("finding"));
        assert_eq!(findings.count(), 2 * MAX_WRITTEN);
        assert_eq!(lines.last().unwrap(), "omitted \"count\":60");
    }

    #[test]
    fn calls_of_one_function_are_one_finding() {
        let of = |call: &str, kernel: &str| {
            let by = finding(kernel, 4, 0).actor;
            key_of(&Finding {
                kind: FindingKind::StreamHazard,
                actor: FindingActor::Operation(call.to_owned()),
                other: Some((crate::report::AccessKind::Write, by)),
                ..finding(kernel, 4, 0)
            })
        };
        let first = of("cuMemcpyDtoH_v2, call 3 on stream 2", "k");
        assert_eq!(first, of("cuMemcpyDtoH_v2, call 9 on stream 4", "k"));
        assert_ne!(first, of("cuMemcpyDtoH_v2, call 3 on stream 2", "another"));
        assert_ne!(first, of("cuMemcpyDtoD_v2, call 3 on stream 2", "k"));
    }
}
