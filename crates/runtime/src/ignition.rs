//! Ignition plan: the layout of a set of tensors in one arena, fixed before memory is allocated.
//!
//! A program declares once which tensors it needs, and during which of its steps. That determines
//! the arena's size and every tensor's offset in it; the plan can be saved to a file, and is the
//! same the next time.
//!
//! Invariant: in an [`IgnitionPlan`] two tensors that are live at one step never overlap, and each
//! is within the arena, aligned to [`ALIGN_BYTES`]; also in one that was read from a file, whatever
//! its content.
//!
//! Elsewhere: choosing the offsets ([`crate::Plan`]).

use std::collections::{BTreeMap, HashSet};

use fercuda_tensor::{Dtype, Layout, LayoutError, UnknownDtype};
use serde::{Deserialize, Serialize};

use crate::plan::{Need, Plan, PlanError};

/// Alignment of tensors, the same as of allocations.
pub const ALIGN_BYTES: u64 = 256;
/// Maximum number of tensors in a file; checked before they are read.
const MAX_TENSORS: usize = 1 << 20;
/// Version of the file format; another version is refused.
const VERSION: u32 = 1;

/// A tensor, and the steps at which it is live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name, unique in the plan.
    pub name: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Number of elements along each dimension; the tensor is contiguous.
    pub shape: Vec<u64>,
    /// The first step that needs it.
    pub from: u32,
    /// The first later step that does not need it.
    pub until: u32,
}

impl TensorSpec {
    /// Layout of its elements.
    ///
    /// # Errors
    /// As [`Layout::contiguous`].
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        Layout::contiguous(self.dtype, &self.shape)
    }
}

/// An invalid tensor, or an invalid plan file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IgnitionError {
    /// Two tensors have one name.
    #[error("there are two tensors {name:?}\ntry: another name for one of them")]
    Name {
        /// The name.
        name: String,
    },
    /// A tensor without a valid layout.
    #[error("tensor {name:?}: {error}")]
    Tensor {
        /// Its name.
        name: String,
        /// The cause.
        error: LayoutError,
    },
    /// A tensor that is live at no step.
    #[error(
        "tensor {name:?} is needed from step {from} until {until}, which is an empty range\ntry: an end after the first step"
    )]
    Steps {
        /// Its name.
        name: String,
        /// Its first step.
        from: u32,
        /// The step behind its last.
        until: u32,
    },
    /// Tensors that cannot be planned.
    #[error("tensor {name:?}: {error}")]
    Plan {
        /// The name of the first tensor that cannot be planned.
        name: String,
        /// The cause.
        error: PlanError,
    },
    /// A file that is not a plan.
    #[error("this is not a plan: {why}\ntry: to create the plan anew, and save that")]
    Format {
        /// The cause.
        why: String,
    },
    /// A file of another version.
    #[error(
        "this plan has version {version}; this library reads version {VERSION}\ntry: to create the plan anew"
    )]
    Version {
        /// The file's version.
        version: u32,
    },
    /// A file in which a tensor's offset is invalid.
    #[error(
        "tensor {name:?} is at offset {begin_bytes} of {arena_bytes} bytes: {why}\ntry: to create the plan anew"
    )]
    Place {
        /// Its name.
        name: String,
        /// Its offset.
        begin_bytes: u64,
        /// Size of the arena.
        arena_bytes: u64,
        /// The cause.
        why: String,
    },
}

/// Offset of each tensor in one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnitionPlan {
    tensors: Vec<(TensorSpec, u64)>,
    arena_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPlan {
    version: u32,
    arena_bytes: u64,
    tensors: Vec<SavedTensor>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedTensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    from: u32,
    until: u32,
    begin_bytes: u64,
}

impl IgnitionPlan {
    /// Plans an arena for these tensors.
    ///
    /// # Errors
    /// [`IgnitionError::Name`], [`IgnitionError::Steps`], [`IgnitionError::Tensor`],
    /// [`IgnitionError::Plan`].
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Self, IgnitionError> {
        let needs = needs(&tensors)?;
        let plan = Plan::of(&needs).map_err(|error| {
            let (PlanError::Align { need, .. }
            | PlanError::Steps { need, .. }
            | PlanError::TooLarge { need, .. }) = error;
            let name = tensors[need].name.clone();
            IgnitionError::Plan { name, error }
        })?;
        let begins = plan.begins().iter().copied();
        Ok(Self {
            tensors: tensors.into_iter().zip(begins).collect(),
            arena_bytes: plan.bytes(),
        })
    }

    /// The tensors, each with its offset in the arena.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, u64)> {
        self.tensors.iter().map(|(tensor, begin)| (tensor, *begin))
    }

    /// Size of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Serialises the plan as JSON, for a file.
    pub fn to_json(&self) -> String {
        let tensor = |(tensor, begin_bytes): &(TensorSpec, u64)| SavedTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.clone(),
            from: tensor.from,
            until: tensor.until,
            begin_bytes: *begin_bytes,
        };
        let saved = SavedPlan {
            version: VERSION,
            arena_bytes: self.arena_bytes,
            tensors: self.tensors.iter().map(tensor).collect(),
        };
        match serde_json::to_string_pretty(&saved) {
            Ok(text) => text,
            Err(error) => unreachable!("numbers, names and lists can be written: {error}"),
        }
    }

    /// Parses and validates the output of [`IgnitionPlan::to_json`].
    ///
    /// # Errors
    /// Any of [`IgnitionError`]'s.
    pub fn from_json(text: &str) -> Result<Self, IgnitionError> {
        let format = |why: String| IgnitionError::Format { why };
        let saved: SavedPlan =
            serde_json::from_str(text).map_err(|error| format(error.to_string()))?;
        if saved.version != VERSION {
            let version = saved.version;
            return Err(IgnitionError::Version { version });
        }
        if saved.tensors.len() > MAX_TENSORS {
            return Err(format(format!(
                "{} tensors are more than {MAX_TENSORS}",
                saved.tensors.len()
            )));
        }
        let begins: Vec<u64> = saved.tensors.iter().map(|it| it.begin_bytes).collect();
        let tensors: Result<Vec<TensorSpec>, UnknownDtype> =
            saved.tensors.into_iter().map(spec).collect();
        let tensors = tensors.map_err(|error| format(error.to_string()))?;
        let needs = needs(&tensors)?;
        let plan = Self {
            tensors: tensors.into_iter().zip(begins).collect(),
            arena_bytes: saved.arena_bytes,
        };
        plan.check(&needs)?;
        Ok(plan)
    }

    /// Validates each tensor's offset: bounds, alignment, overlap.
    fn check(&self, needs: &[Need]) -> Result<(), IgnitionError> {
        let refused = |at: usize, why: String| IgnitionError::Place {
            name: self.tensors[at].0.name.clone(),
            begin_bytes: self.tensors[at].1,
            arena_bytes: self.arena_bytes,
            why,
        };
        // Begin and end of lifetimes in the order of steps; at one step ends come first.
        let mut changes: Vec<(u32, bool, usize)> = Vec::new();
        for (at, need) in needs.iter().enumerate() {
            let begin = self.tensors[at].1;
            if !begin.is_multiple_of(ALIGN_BYTES) {
                return Err(refused(at, format!("no multiple of {ALIGN_BYTES}")));
            }
            let end = begin.checked_add(need.bytes);
            if end.is_none_or(|end| end > self.arena_bytes) {
                return Err(refused(at, format!("it has {} bytes", need.bytes)));
            }
            if need.bytes > 0 {
                changes.extend([(need.from, true, at), (need.until, false, at)]);
            }
        }
        changes.sort_unstable();
        let mut there: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, begins, at) in changes {
            let begin = self.tensors[at].1;
            if !begins {
                there.remove(&begin);
                continue;
            }
            let end = begin + needs[at].bytes;
            // Only the last tensor that begins below this one's end can overlap it.
            if let Some((other_begin, other)) = there.range(..end).next_back()
                && other_begin + needs[*other].bytes > begin
            {
                let other = &self.tensors[*other].0.name;
                return Err(refused(
                    at,
                    format!("it overlaps {other:?}, which is live at the same step"),
                ));
            }
            there.insert(begin, at);
        }
        Ok(())
    }
}

fn spec(saved: SavedTensor) -> Result<TensorSpec, UnknownDtype> {
    Ok(TensorSpec {
        dtype: saved.dtype.parse()?,
        name: saved.name,
        shape: saved.shape,
        from: saved.from,
        until: saved.until,
    })
}

/// Memory needs of the tensors.
fn needs(tensors: &[TensorSpec]) -> Result<Vec<Need>, IgnitionError> {
    let mut names = HashSet::new();
    let mut needs = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let name = || tensor.name.clone();
        if !names.insert(&*tensor.name) {
            return Err(IgnitionError::Name { name: name() });
        }
        let (from, until) = (tensor.from, tensor.until);
        if from >= until {
            return Err(IgnitionError::Steps {
                name: name(),
                from,
                until,
            });
        }
        let layout = tensor.layout();
        let layout = layout.map_err(|error| IgnitionError::Tensor {
            name: name(),
            error,
        })?;
        needs.push(Need {
            bytes: layout.bytes(),
            align_bytes: ALIGN_BYTES,
            from,
            until,
        });
    }
    Ok(needs)
}
