//! Parser of a corpus file's header: lines that begin with `//@`.
//!
//! ```text
//! //@ options: --fmad=false
//! //@ arch: sm_90a
//! //@ run NAME: KERNEL grid=4,2 block=32,8 shared=1024 cooperative
//! //@   in x: f32[512] uniform(-1, 1)
//! //@   inout counts: u32[16] zero exact
//! //@   out y: f32[512] bound loose
//! //@   val n: i32 512
//! //@   map m: x f32 dims=16,32 strides=64 box=16,8
//! //@   set taps: f32[16] uniform(-1, 1)
//! //@   get total: u32[1] exact
//! //@   prints "a line of the kernel's printf"
//! //@   finds out of bounds, uninitialised read
//! //@ program NAME
//! //@   alloc x 1024
//! //@   finds stream hazard
//! ```
//! Arguments are passed in the order of their lines. Fills: `zero iota bits mix made const(v)
//! uniform(a, b) int(a, b)`. Driver operations follow `program` ([`crate::raw`]). Judges:
//! `exact`, `ulp=N`, `bound`, `sorted`, `raw`; `loose` allows two devices to differ within the
//! bound.

use crate::data::{ArgumentSpec, Buffer, Fill, Judge, LaunchInputs, Role};
use crate::map_spec::MapSpec;
use crate::reference::Reference;
use crate::rng::RecordedRng;
use fercuda_tensor::{Dtype, UnknownDtype};

/// A header that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct HeaderError {
    /// File name.
    pub file: String,
    /// 1-based.
    pub line: usize,
    /// What is wrong, and what was expected.
    pub message: String,
}

/// A corpus file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileTest {
    /// File name without `.cu`.
    pub name: String,
    /// The whole text.
    pub source: String,
    /// Options for NVRTC.
    pub options: Vec<String>,
    /// The architecture that it is checked for, if only that has what it uses.
    pub arch: Option<String>,
    /// Launches.
    pub runs: Vec<Run>,
    /// Programs.
    pub programs: Vec<DriverProgram>,
}

/// Operations of the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverProgram {
    /// Its own name; the file's if it has none.
    pub name: String,
    /// Operations, in words.
    pub steps: Vec<Vec<String>>,
    /// The kinds of its findings, where its header says them.
    pub finds: Vec<String>,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its own name, which its reference shares.
    pub name: String,
    /// The kernel's.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Whether blocks may wait for each other.
    pub cooperative: bool,
    /// Arguments and module variables, in order.
    pub args: Vec<ArgumentSpec>,
    /// Tensor maps among the arguments.
    pub maps: Vec<MapSpec>,
    /// Lines that the kernel prints, in any order.
    pub prints: Vec<String>,
    /// The kinds of its findings, where its header says them.
    pub finds: Vec<String>,
    /// Scalars given in the header, by argument.
    scalars: Vec<(String, f64, i128)>,
}

impl Run {
    /// A launch of `kernel` without arguments.
    pub fn shape(kernel: &str, grid: u32, block: u32) -> Run {
        Run {
            name: kernel.to_string(),
            kernel: kernel.to_string(),
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared_bytes: 0,
            cooperative: false,
            args: Vec::new(),
            maps: Vec::new(),
            prints: Vec::new(),
            finds: Vec::new(),
            scalars: Vec::new(),
        }
    }

    /// Inputs from `seed`, the reference having made its part.
    pub fn case(&self, reference: Option<&Reference>, seed: u64) -> LaunchInputs {
        let mut rng = RecordedRng::new(seed, &self.name);
        let mut case = LaunchInputs {
            grid: self.grid,
            block: self.block,
            buffers: Default::default(),
        };
        for arg in &self.args {
            let mut buffer = Buffer::zeroed(arg.elem, arg.len);
            buffer.is_struct = arg.is_struct;
            if !matches!(arg.role, Role::Out | Role::Get) {
                arg.fill.apply(&mut buffer, &mut rng);
            }
            if let Some((_, float, whole)) = self.scalars.iter().find(|s| s.0 == arg.name) {
                buffer.set_bits(
                    0,
                    if arg.elem.float_format().is_some() {
                        arg.elem.encode(*float)
                    } else {
                        *whole as u64
                    },
                );
            }
            case.buffers.insert(arg.name.clone(), buffer);
        }
        if let Some(make) = reference.and_then(|r| r.make) {
            make(&mut case, &mut rng);
        }
        case
    }
}

/// Reads `source`, the text of `name`.cu.
///
/// # Errors
/// The first line that cannot be parsed.
pub fn parse(name: &str, source: &str) -> Result<FileTest, HeaderError> {
    let mut test = FileTest {
        name: name.to_string(),
        source: source.to_string(),
        options: Vec::new(),
        arch: None,
        runs: Vec::new(),
        programs: Vec::new(),
    };
    for (index, line) in source.lines().enumerate() {
        let Some(text) = line.strip_prefix("//@") else {
            continue;
        };
        parse_line(&mut test, text.trim()).map_err(|message| HeaderError {
            file: format!("{name}.cu"),
            line: index + 1,
            message,
        })?;
    }
    if test.runs.is_empty() && test.programs.is_empty() {
        return Err(HeaderError {
            file: format!("{name}.cu"),
            line: 1,
            message: "no `//@ run` or `//@ program` line".to_string(),
        });
    }
    Ok(test)
}

fn parse_line(test: &mut FileTest, text: &str) -> Result<(), String> {
    if let Some(options) = text.strip_prefix("options:") {
        test.options
            .extend(options.split_whitespace().map(str::to_string));
        return Ok(());
    }
    if let Some(arch) = text.strip_prefix("arch:") {
        test.arch = Some(arch.trim().to_string());
        return Ok(());
    }
    if let Some(rest) = text.strip_prefix("run ") {
        test.runs.push(parse_run(rest)?);
        return Ok(());
    }
    if let Some(name) = text.strip_prefix("program") {
        test.programs.push(DriverProgram {
            name: match name.trim() {
                "" => test.name.clone(),
                name => name.to_string(),
            },
            ..DriverProgram::default()
        });
        return Ok(());
    }
    if let Some(program) = test.programs.last_mut() {
        match text.strip_prefix("finds ") {
            Some(kinds) => program.finds.extend(list(kinds)),
            None => {
                let words = text.split_whitespace().map(str::to_string);
                program.steps.push(words.collect());
            }
        }
        return Ok(());
    }
    let run = test
        .runs
        .last_mut()
        .ok_or("an argument before the first `run`")?;
    if let Some(map) = text.strip_prefix("map ") {
        run.maps.push(MapSpec::parse(map, run.args.len())?);
        return Ok(());
    }
    if let Some(line) = text.strip_prefix("prints ") {
        run.prints.push(line.trim().trim_matches('"').to_string());
        return Ok(());
    }
    if let Some(kinds) = text.strip_prefix("finds ") {
        run.finds.extend(list(kinds));
        return Ok(());
    }
    let (role, rest) = text
        .split_once(' ')
        .ok_or_else(|| format!("`{text}` is no argument"))?;
    let role = match role {
        "in" => Role::In,
        "out" => Role::Out,
        "inout" => Role::InOut,
        "val" => Role::Value,
        "set" => Role::Set,
        "get" => Role::Get,
        other => {
            return Err(format!(
                "`{other}` is not one of in, out, inout, val, set, get, prints, finds"
            ));
        }
    };
    let (name, rest) = rest.split_once(':').ok_or("expected `NAME: TYPE`")?;
    let mut words = words(rest).into_iter();
    let ty = words.next().ok_or("expected a type")?;
    let (elem, len) = match ty.split_once('[') {
        Some((elem, len)) => (
            elem,
            len.trim_end_matches(']')
                .parse()
                .map_err(|_| format!("`{ty}`: a length in brackets"))?,
        ),
        None => (ty.as_str(), 1),
    };
    let is_struct = elem == "bytes";
    let elem = match is_struct {
        true => Dtype::U8,
        false => elem
            .parse()
            .map_err(|error: UnknownDtype| error.to_string())?,
    };
    let mut arg = ArgumentSpec {
        name: name.trim().to_string(),
        role,
        elem,
        is_struct,
        len,
        fill: Fill::Zero,
        judge: Judge::Exact,
        loose: false,
    };
    for word in words {
        if word == "loose" {
            arg.loose = true;
        } else if let Some(judge) = parse_judge(&word) {
            arg.judge = judge;
        } else if let Some(fill) = parse_fill(&word) {
            arg.fill = fill;
        } else if let (Role::Value, Ok(float)) = (role, word.parse::<f64>()) {
            run.scalars.push((
                arg.name.clone(),
                float,
                word.parse().unwrap_or(float as i128),
            ));
        } else {
            return Err(format!("`{word}` is neither a fill nor a judge"));
        }
    }
    run.args.push(arg);
    Ok(())
}

fn parse_run(text: &str) -> Result<Run, String> {
    let (name, rest) = text.split_once(':').ok_or("expected `run NAME: KERNEL`")?;
    let mut words = rest.split_whitespace();
    let mut run = Run {
        name: name.trim().to_string(),
        kernel: words.next().ok_or("expected a kernel")?.to_string(),
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        args: Vec::new(),
        maps: Vec::new(),
        prints: Vec::new(),
        finds: Vec::new(),
        scalars: Vec::new(),
    };
    for word in words {
        match word.split_once('=') {
            Some(("grid", v)) => run.grid = dimensions(v)?,
            Some(("block", v)) => run.block = dimensions(v)?,
            Some(("shared", v)) => {
                run.shared_bytes = v
                    .parse()
                    .map_err(|_| format!("`{v}` is no number of bytes"))?
            }
            None if word == "cooperative" => run.cooperative = true,
            _ => {
                return Err(format!(
                    "`{word}` is not one of grid=, block=, shared=, cooperative"
                ));
            }
        }
    }
    Ok(run)
}

fn dimensions(text: &str) -> Result<[u32; 3], String> {
    let mut out = [1; 3];
    for (i, part) in text.split(',').enumerate() {
        *out.get_mut(i).ok_or("at most three dimensions")? = part
            .parse()
            .map_err(|_| format!("`{part}` is no dimension"))?;
    }
    Ok(out)
}

/// What stands between commas.
fn list(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|item| item.trim().to_string())
}

/// Words, those in brackets whole.
fn words(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if c.is_whitespace() && depth == 0 {
            out.push(String::new());
        } else if !c.is_whitespace() {
            out.last_mut().into_iter().for_each(|w| w.push(c));
        }
    }
    out.retain(|w| !w.is_empty());
    out
}

fn parse_judge(word: &str) -> Option<Judge> {
    Some(match word {
        "exact" => Judge::Exact,
        "bound" => Judge::Bound,
        "sorted" => Judge::Sorted,
        "raw" => Judge::Raw,
        _ => Judge::Ulp(word.strip_prefix("ulp=")?.parse().ok()?),
    })
}

fn parse_fill(word: &str) -> Option<Fill> {
    let inside = |name: &str| {
        word.strip_prefix(name)?
            .strip_prefix('(')?
            .strip_suffix(')')
    };
    Some(match word {
        "zero" => Fill::Zero,
        "iota" => Fill::Iota,
        "bits" => Fill::Bits,
        "mix" => Fill::Mix,
        "made" => Fill::Made,
        _ => {
            if let Some(v) = inside("const") {
                Fill::Const(v.parse().ok()?)
            } else if let Some((a, b)) = inside("uniform").and_then(|v| v.split_once(',')) {
                Fill::Uniform(a.parse().ok()?, b.parse().ok()?)
            } else {
                let (a, b) = inside("int")?.split_once(',')?;
                Fill::Int(a.parse().ok()?, b.parse().ok()?)
            }
        }
    })
}
