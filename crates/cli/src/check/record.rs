//! Findings and faults in the form that reports of several processes and formats share.

use fercuda_softgpu::report::{ExecutionPoint, Fault, FaultKind, Finding, FindingActor};
use serde::{Deserialize, Serialize};

/// The kinds of faults that are limits of the software device, not defects of the program.
const LIMITS: [FaultKind; 2] = [
    FaultKind::Internal,
    FaultKind::NotImplemented {
        opcode: String::new(),
        line: 0,
    },
];

/// A finding, or a fault, of any process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct FindingRecord {
    /// Its class, such as `out of bounds`.
    pub(crate) kind: String,
    /// Where; absent for an operation of the driver.
    pub(crate) place: Option<PlaceRecord>,
    /// The place of the other access of a race.
    pub(crate) other: Option<PlaceRecord>,
    /// The number of occurrences; a process that was killed may have had up to twice as many.
    pub(crate) count: u64,
    /// The report as text.
    pub(crate) text: String,
    /// The kernel, or the driver's function and what it conflicts with.
    #[serde(default)]
    pub(crate) by: String,
}

/// A place in a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct PlaceRecord {
    pub(crate) kernel: String,
    /// 1-based.
    pub(crate) ptx_line: Option<u32>,
    /// Source file, if the kernel has line information.
    pub(crate) file: Option<String>,
    /// 1-based line of the source file.
    pub(crate) line: Option<u32>,
    pub(crate) block: [u32; 3],
    pub(crate) thread: [u32; 3],
}

impl From<&ExecutionPoint> for PlaceRecord {
    fn from(point: &ExecutionPoint) -> PlaceRecord {
        let source = point.source.as_ref();
        PlaceRecord {
            kernel: point.kernel.to_string(),
            ptx_line: (point.ptx_line != 0).then_some(point.ptx_line),
            file: source.map(|(file, _)| file.to_string()),
            line: source.map(|(_, line)| *line),
            block: point.block,
            thread: point.thread,
        }
    }
}

impl From<&Finding> for FindingRecord {
    fn from(finding: &Finding) -> FindingRecord {
        let place = |actor: &FindingActor| match actor {
            FindingActor::Thread(place, _) => Some(PlaceRecord::from(&**place)),
            FindingActor::Operation(_) => None,
        };
        FindingRecord {
            kind: finding.kind.to_string(),
            place: place(&finding.actor),
            other: finding.other.as_ref().and_then(|(_, actor)| place(actor)),
            count: finding.count,
            text: finding.to_string(),
            by: match &finding.actor {
                FindingActor::Thread(place, _) => place.kernel.to_string(),
                FindingActor::Operation(text) => text.clone(),
            },
        }
    }
}

impl From<&Fault> for FindingRecord {
    fn from(fault: &Fault) -> FindingRecord {
        let place = fault.place.as_ref();
        FindingRecord {
            kind: fault.kind.name().to_owned(),
            place: place.map(PlaceRecord::from),
            other: None,
            count: 1,
            text: fault.to_string(),
            by: place.map_or_else(String::new, |place| place.kernel.to_string()),
        }
    }
}

impl FindingRecord {
    /// Whether it is the fault of an access that `finding` reports: of the same instruction, and of
    /// a class that is a fault too.
    pub(crate) fn is_fault_of(&self, finding: &FindingRecord) -> bool {
        let class = match self.kind.as_str() {
            "illegal address" => ["out of bounds", "use after free"].contains(&&*finding.kind),
            "misaligned address" => finding.kind == "misaligned",
            _ => false,
        };
        let place = |record: &FindingRecord| {
            let place = record.place.as_ref()?;
            Some((place.kernel.clone(), place.ptx_line?))
        };
        class && place(self).is_some_and(|own| place(finding) == Some(own))
    }

    /// A fault's text where its access is reported already: its first line.
    pub(crate) fn brief(text: &str) -> String {
        let first = text.lines().next().unwrap_or_default();
        format!("{first}, as reported above")
    }

    /// Whether it is a limit of the software device: the program may be right.
    pub(crate) fn is_limit(&self) -> bool {
        LIMITS.iter().any(|kind| kind.name() == self.kind)
    }

    /// What makes it equal to another one: the kernel or function, the kind, the line of PTX, the
    /// source file and its line.
    pub(crate) fn key(&self) -> (&str, &str, u32, &str, u32) {
        let place = self.place.as_ref();
        let file = place.and_then(|place| place.file.as_deref());
        (
            &self.by,
            &self.kind,
            place.and_then(|place| place.ptx_line).unwrap_or_default(),
            file.unwrap_or_default(),
            place.and_then(|place| place.line).unwrap_or_default(),
        )
    }
}
