//! SARIF 2.1.0: findings as code hosts and editors read them.
//!
//! Invariant: a result has a physical location if its kernel has line information, or if its PTX is
//! a file, and a logical one, its kernel, always. What the software device cannot execute is a
//! notification of the invocation, not a result.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use serde_json::{Value, json};

use super::process_report::LEAK;
use super::record::{FindingRecord, PlaceRecord};
use super::symbols::demangled;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// Kinds of findings and faults, and what each means.
const RULES: [(&str, &str); 31] = [
    (
        "out of bounds",
        "An access outside of the allocation that its pointer belongs to.",
    ),
    (
        "misaligned",
        "An address that is no multiple of the access's size.",
    ),
    (
        "uninitialised read",
        "A read of memory that nothing has written.",
    ),
    ("use after free", "An access to memory that was freed."),
    (
        "shared memory race",
        "Two accesses to shared memory, one a write, that nothing orders.",
    ),
    (
        "global memory race",
        "Two accesses to global memory, one a write, that nothing orders.",
    ),
    (
        "barrier divergence",
        "Threads of a block that wait at a barrier which others never reach.",
    ),
    (
        "missing wait for an asynchronous copy",
        "Shared memory that is read before the copy into it is complete.",
    ),
    (
        "stream hazard",
        "Work in two streams, or of host and device, that nothing orders.",
    ),
    (
        "read-only load of written data",
        "Data that a kernel reads as read-only data, and writes.",
    ),
    (
        "atomic scope too narrow",
        "Atomics of several blocks on one address, one of the scope of its block only.",
    ),
    (
        "wrong warp mask",
        "A lane at an instruction of its warp, or read by one, that is not there by its mask.",
    ),
    (
        "absent cluster peer",
        "An access to shared memory of a block of the cluster that may not be there.",
    ),
    (
        "invalid free",
        "A freeing of what is no allocation, or no longer.",
    ),
    (
        "missing wait for a wgmma",
        "A register of a product of four warps that is accessed before the product is waited for.",
    ),
    (
        "missing wgmma.fence",
        "A product of four warps with registers that were written without a wgmma.fence behind.",
    ),
    (
        "wrong register count",
        "A setmaxnreg for more registers than the block has, or in the wrong direction.",
    ),
    (
        "leaked memory",
        "Memory that is not freed before its context or the program ends.",
    ),
    (
        "missing proxy fence",
        "A bulk copy of what threads wrote, with no fence of the asynchronous proxy between.",
    ),
    (
        "mbarrier that never completes",
        "Threads that wait for a phase of an mbarrier that nothing can end.",
    ),
    (
        "misuse of a tensor map",
        "A copy that its tensor map does not allow, or that lies outside of the tensor.",
    ),
    (
        "illegal address",
        "An access to memory that is not mapped, which ended the kernel.",
    ),
    (
        "misaligned address",
        "An access to a misaligned address, which ended the kernel.",
    ),
    (
        "illegal instruction",
        "An instruction with invalid operands, which ended the kernel.",
    ),
    (
        "outside the surface",
        "A surface access outside the surface, which ended the kernel.",
    ),
    ("trap", "A trap instruction, which ended the kernel."),
    (
        "assertion failed",
        "An assertion in the kernel that does not hold.",
    ),
    ("time-out", "A kernel that did not end in time."),
    ("deadlock", "A block of which no thread can go on."),
    (
        "cluster peer has exited",
        "An access to shared memory of a block that has exited, which ended the kernel.",
    ),
    (
        "stack overflow",
        "Calls that need more local memory than a thread has.",
    ),
];

/// The level of a kind's results.
fn level(kind: &str) -> &'static str {
    match kind {
        LEAK => "note",
        _ => "error",
    }
}

/// The run that a log describes.
pub(crate) struct SarifInvocation<'a> {
    /// The checked program, or `fercuda`.
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    /// Of the program, if it exited.
    pub(crate) exit_code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// The file in which lines of PTX are to be found.
    pub(crate) ptx: Option<&'a Path>,
}

/// A log of one run.
pub(crate) fn log<'a>(
    invocation: &SarifInvocation<'_>,
    findings: impl Iterator<Item = &'a FindingRecord>,
    limits: &[&FindingRecord],
) -> Value {
    let here = std::env::current_dir().unwrap_or_default();
    let sources = SourceFiles {
        here: &here,
        ptx: invocation.ptx,
    };
    let rules: Vec<Value> = RULES
        .iter()
        .map(|(kind, meaning)| {
            json!({
                "id": rule_id(kind),
                "shortDescription": { "text": meaning },
                "defaultConfiguration": { "level": level(kind) },
            })
        })
        .collect();
    let notifications: Vec<Value> = limits
        .iter()
        .map(|limit| json!({ "level": "error", "message": { "text": limit.text } }))
        .collect();
    let mut run = json!({
        "executionSuccessful": limits.is_empty(),
        "executableLocation": { "uri": sources.uri(invocation.program).0 },
        "arguments": texts(invocation.arguments),
        "toolExecutionNotifications": notifications,
    });
    if let Some(code) = invocation.exit_code {
        run["exitCode"] = code.into();
    }
    if let Some(signal) = invocation.signal {
        run["exitSignalNumber"] = signal.into();
    }
    let results: Vec<Value> = findings.map(|finding| sources.result(finding)).collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "fercuda",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": rules,
            }},
            "originalUriBaseIds": { "SRCROOT": { "uri": format!("{}/", file_uri(&here)) } },
            "invocations": [run],
            "results": results,
        }],
    })
}

fn texts(arguments: &[OsString]) -> Vec<String> {
    let text = |argument: &OsString| argument.to_string_lossy().into_owned();
    arguments.iter().map(text).collect()
}

/// `use after free` as `use-after-free`.
fn rule_id(kind: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let words = kind.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// Locations of files, relative to the current folder where they are in it.
struct SourceFiles<'a> {
    here: &'a Path,
    ptx: Option<&'a Path>,
}

impl SourceFiles<'_> {
    fn result(&self, finding: &FindingRecord) -> Value {
        let mut result = json!({
            "ruleId": rule_id(&finding.kind),
            "level": level(&finding.kind),
            "message": { "text": finding.text },
            "locations": [self.location(finding.place.as_ref(), &finding.by)],
            "occurrenceCount": finding.count.clamp(1, i32::MAX as u64),
        });
        if let Some(index) = RULES.iter().position(|(kind, _)| *kind == finding.kind) {
            result["ruleIndex"] = index.into();
        }
        if let Some(other) = &finding.other {
            let mut location = self.location(Some(other), &other.kernel);
            location["message"] = json!({ "text": "the other access" });
            result["relatedLocations"] = json!([location]);
        }
        result
    }

    fn location(&self, place: Option<&PlaceRecord>, by: &str) -> Value {
        // Of an operation of the driver, the function alone.
        let function = by.split([' ', ',']).next().unwrap_or_default();
        let name = place.map_or(function, |place| &place.kernel);
        let mut logical = json!({ "fullyQualifiedName": name, "kind": "function" });
        if let Some(readable) = demangled(name) {
            logical["fullyQualifiedName"] = readable.into();
            logical["decoratedName"] = name.into();
        }
        let mut location = json!({ "logicalLocations": [logical] });
        let source = place.and_then(|place| {
            let source = place.file.as_deref().zip(place.line);
            let source = source.map(|(file, line)| (Path::new(file), line));
            source.or_else(|| self.ptx.zip(place.ptx_line))
        });
        if let Some((file, line)) = source.filter(|(_, line)| *line > 0) {
            let (uri, is_here) = self.uri(file);
            let mut artifact = json!({ "uri": uri });
            if is_here {
                artifact["uriBaseId"] = "SRCROOT".into();
            }
            location["physicalLocation"] = json!({
                "artifactLocation": artifact,
                "region": { "startLine": line },
            });
        }
        location
    }

    /// The URI of a file, and whether it is relative to the current folder.
    fn uri(&self, file: &Path) -> (String, bool) {
        let file: std::path::PathBuf = file.components().collect();
        let relative = file.strip_prefix(self.here).unwrap_or(&file);
        // A leading `./` is redundant.
        let relative = relative.strip_prefix(Component::CurDir).unwrap_or(relative);
        match relative.is_absolute() {
            true => (file_uri(relative), false),
            false => (escaped(relative), true),
        }
    }
}

fn file_uri(path: &Path) -> String {
    format!("file://{}", escaped(path))
}

/// A path with what a URI cannot have escaped.
fn escaped(path: &Path) -> String {
    let mut escaped = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(*byte));
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use fercuda_softgpu::report::{Access, AccessKind, FaultKind, FindingKind, MemSpace};

    use super::*;

    fn record(file: Option<&str>) -> FindingRecord {
        FindingRecord {
            kind: FindingKind::UseAfterFree.to_string(),
            place: Some(PlaceRecord {
                kernel: "k".to_owned(),
                ptx_line: Some(12),
                file: file.map(str::to_owned),
                line: file.map(|_| 5),
                block: [0; 3],
                thread: [0; 3],
            }),
            other: None,
            count: 4,
            text: "use after free: a report".to_owned(),
            by: "k".to_owned(),
        }
    }

    fn result(finding: &FindingRecord, ptx: Option<&str>) -> Value {
        let invocation = SarifInvocation {
            program: Path::new("/bin/p"),
            arguments: &["a".into()],
            exit_code: Some(3),
            signal: None,
            ptx: ptx.map(Path::new),
        };
        let log = log(&invocation, [finding].into_iter(), &[]);
        assert_eq!(log["version"], "2.1.0");
        assert_eq!(log["runs"][0]["tool"]["driver"]["name"], "fercuda");
        let result = log["runs"][0]["results"][0].clone();
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        let rule = &log["runs"][0]["tool"]["driver"]["rules"][index];
        assert_eq!(rule["id"], result["ruleId"]);
        result
    }

    #[test]
    fn a_result_has_the_source_line_else_the_line_of_ptx_else_its_kernel() {
        let here = std::env::current_dir().unwrap();
        let inside = here.join("my kernels/a.cu");
        let base = Some("SRCROOT");
        for (file, ptx, uri, base, line) in [
            (Some("./a.cu"), None, "a.cu", base, 5),
            (inside.to_str(), None, "my%20kernels/a.cu", base, 5),
            (
                Some("/nowhere/ä.cu"),
                None,
                "file:///nowhere/%C3%A4.cu",
                None,
                5,
            ),
            (None, Some("k.ptx"), "k.ptx", base, 12),
        ] {
            let result = result(&record(file), ptx);
            let location = &result["locations"][0];
            let physical = &location["physicalLocation"];
            assert_eq!(physical["artifactLocation"]["uri"], uri);
            assert_eq!(physical["artifactLocation"]["uriBaseId"].as_str(), base);
            assert_eq!(physical["region"]["startLine"], line);
            assert_eq!(location["logicalLocations"][0]["fullyQualifiedName"], "k");
        }
        let result = result(&record(None), None);
        assert_eq!(result["ruleId"], "use-after-free");
        assert_eq!(result["level"], "error");
        assert_eq!(result["occurrenceCount"], 4);
        let location = &result["locations"][0];
        assert_eq!(location.get("physicalLocation"), None);
        assert_eq!(location["logicalLocations"][0]["fullyQualifiedName"], "k");
    }

    #[test]
    fn a_mangled_name_is_beside_the_one_of_the_source() {
        let mut finding = record(None);
        if let Some(place) = &mut finding.place {
            place.kernel = "_Z5scaleIfEvPT_i".to_owned();
        }
        let location = &result(&finding, None)["locations"][0];
        let logical = &location["logicalLocations"][0];
        assert_eq!(logical["fullyQualifiedName"], "scale<float>(float*, int)");
        assert_eq!(logical["decoratedName"], "_Z5scaleIfEvPT_i");
    }

    #[test]
    fn an_operation_of_the_driver_is_named_by_its_function() {
        for by in [
            "cuMemsetD8Async, call 1 on stream 2",
            "cuMemsetD8Async against k 4",
        ] {
            let hazard = FindingRecord {
                place: None,
                by: by.to_owned(),
                ..record(None)
            };
            let location = &result(&hazard, Some("k.ptx"))["locations"][0];
            assert_eq!(location.get("physicalLocation"), None);
            let name = &location["logicalLocations"][0]["fullyQualifiedName"];
            assert_eq!(name, "cuMemsetD8Async");
        }
    }

    #[test]
    fn each_kind_has_a_rule() {
        let access = Access {
            kind: AccessKind::Read,
            space: MemSpace::Global,
            addr: 0,
            len: 4,
        };
        let faults = [
            FaultKind::IllegalAddress(access),
            FaultKind::Misaligned(access),
            FaultKind::IllegalInstruction(String::new()),
            FaultKind::OutsideSurface(String::new()),
            FaultKind::Trap,
            FaultKind::Assert {
                message: String::new(),
                file: String::new(),
                line: 1,
                function: String::new(),
            },
            FaultKind::Timeout { limit_ms: 1 },
            FaultKind::Deadlock(String::new()),
            FaultKind::AbsentPeer {
                block: [0; 3],
                rank: 0,
            },
            FaultKind::StackOverflow { limit: 1 },
        ];
        let findings = [
            FindingKind::OutOfBounds,
            FindingKind::Misaligned,
            FindingKind::Uninitialised,
            FindingKind::UseAfterFree,
            FindingKind::SharedRace,
            FindingKind::GlobalRace,
            FindingKind::BarrierDivergence,
            FindingKind::MissingAsyncWait,
            FindingKind::StreamHazard,
            FindingKind::ReadOnlyData,
            FindingKind::NarrowScope,
            FindingKind::WarpMask,
            FindingKind::AbsentPeer,
            FindingKind::InvalidFree,
            FindingKind::MissingProductWait,
            FindingKind::MissingProductFence,
            FindingKind::RegisterFile,
            FindingKind::Leak,
            FindingKind::MissingProxyFence,
            FindingKind::StuckMbarrier,
            FindingKind::TensorMap,
        ];
        let mut kinds: Vec<String> = findings.iter().map(ToString::to_string).collect();
        kinds.extend(faults.iter().map(|kind| kind.name().to_owned()));
        let rules: Vec<&str> = RULES.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, rules);
    }
}
