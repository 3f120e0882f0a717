//! A set of tensors in one arena, planned before any memory is taken.
//!
//! Who knows which tensors a program needs, and from which of its steps to which,
//! says so once; the arena's size and every tensor's place in it are known then, can be
//! kept in a file, and are the same the next time.
//!
//! Invariant: in an [`IgnitionPlan`] no two tensors that are needed at one step have a
//! byte in common, and each lies within the arena, at a multiple of
//! [`ALIGN_BYTES`]; also in one that was read from a file, whatever stood there.
//!
//! Elsewhere: where things lie best ([`crate::Plan`]).

use std::collections::{BTreeMap, HashSet};

use fercuda_tensor::{Dtype, Layout, LayoutError, UnknownDtype};
use serde::{Deserialize, Serialize};

use crate::plan::{Need, Plan, PlanError};

/// Tensors begin at multiples of so much, as allocations do.
pub const ALIGN_BYTES: u64 = 256;
/// A file that says more tensors is refused before they are looked at.
const MOST: usize = 1 << 20;
/// What is written; another version is refused.
const VERSION: u32 = 1;

/// A tensor, and the steps that need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// What it is found by; each has another.
    pub name: String,
    /// What an element is.
    pub dtype: Dtype,
    /// How many elements along each dimension; they lie side by side.
    pub shape: Vec<u64>,
    /// The first step that needs it.
    pub from: u32,
    /// The first one after it that does not.
    pub until: u32,
}

impl TensorSpec {
    /// How its elements lie.
    ///
    /// # Errors
    /// As [`Layout::contiguous`].
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        Layout::contiguous(self.dtype, &self.shape)
    }
}

/// A plan that there cannot be, or that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IgnitionError {
    /// Two tensors have one name.
    #[error("there are two tensors {name:?}\ntry: another name for one of them")]
    Name {
        /// The name.
        name: String,
    },
    /// A tensor that there cannot be.
    #[error("tensor {name:?}: {error}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        error: LayoutError,
    },
    /// A tensor that is needed at no step.
    #[error(
        "tensor {name:?} is needed from step {from} until {until}, which is none\ntry: a step after the first"
    )]
    Steps {
        /// Its name.
        name: String,
        /// Its first step.
        from: u32,
        /// The one behind its last.
        until: u32,
    },
    /// Tensors that cannot be planned.
    #[error("tensor {name:?}: {error}")]
    Plan {
        /// The name of the first that is wrong.
        name: String,
        /// What is wrong.
        error: PlanError,
    },
    /// A file that is no plan.
    #[error("this is no plan: {why}\ntry: to plan anew, and save that")]
    Format {
        /// What is wrong.
        why: String,
    },
    /// A file of another version.
    #[error("this plan is of version {version}, and {VERSION} is read here\ntry: to plan anew")]
    Version {
        /// Which one.
        version: u32,
    },
    /// A file in which a tensor lies where it cannot.
    #[error(
        "tensor {name:?} lies at {begin_bytes} of {arena_bytes} bytes: {why}\ntry: to plan anew"
    )]
    Place {
        /// Its name.
        name: String,
        /// Where.
        begin_bytes: u64,
        /// The arena.
        arena_bytes: u64,
        /// What is wrong there.
        why: String,
    },
}

/// Where each tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnitionPlan {
    tensors: Vec<(TensorSpec, u64)>,
    arena_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
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

    /// The tensors, each with where it begins in the arena.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, u64)> {
        self.tensors.iter().map(|(tensor, begin)| (tensor, *begin))
    }

    /// What the arena takes.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// As text, for a file.
    pub fn to_json(&self) -> String {
        let tensor = |(tensor, begin_bytes): &(TensorSpec, u64)| SavedTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.clone(),
            from: tensor.from,
            until: tensor.until,
            begin_bytes: *begin_bytes,
        };
        let saved = Saved {
            version: VERSION,
            arena_bytes: self.arena_bytes,
            tensors: self.tensors.iter().map(tensor).collect(),
        };
        match serde_json::to_string_pretty(&saved) {
            Ok(text) => text,
            Err(error) => unreachable!("numbers, names and lists can be written: {error}"),
        }
    }

    /// What [`IgnitionPlan::to_json`] wrote. All of it is checked.
    ///
    /// # Errors
    /// Any of [`IgnitionError`]'s.
    pub fn from_json(text: &str) -> Result<Self, IgnitionError> {
        let format = |why: String| IgnitionError::Format { why };
        let saved: Saved = serde_json::from_str(text).map_err(|error| format(error.to_string()))?;
        if saved.version != VERSION {
            let version = saved.version;
            return Err(IgnitionError::Version { version });
        }
        if saved.tensors.len() > MOST {
            return Err(format(format!(
                "{} tensors are more than {MOST}",
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

    /// Whether each tensor lies where it may.
    fn check(&self, needs: &[Need]) -> Result<(), IgnitionError> {
        let refused = |at: usize, why: String| IgnitionError::Place {
            name: self.tensors[at].0.name.clone(),
            begin_bytes: self.tensors[at].1,
            arena_bytes: self.arena_bytes,
            why,
        };
        // What begins and ends at each step; what ends does so first.
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
            // The last one that begins below its end is the only one that may reach in.
            if let Some((other_begin, other)) = there.range(..end).next_back()
                && other_begin + needs[*other].bytes > begin
            {
                let other = &self.tensors[*other].0.name;
                return Err(refused(at, format!("{other:?} is there at the same step")));
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

/// What tensors need.
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
