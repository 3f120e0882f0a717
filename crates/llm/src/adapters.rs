//! Adapters of an engine in device memory.
//!
//! What an adapter adds to a product is (x A^T) B^T. Factors of all adapters are stacked, as those
//! of experts are, and each token's number chooses its own; a token without one gets zeros, for
//! which nothing is read.
//!
//! Invariant: what a step reads of an adapter was written whole when it was loaded. Elsewhere: its
//! ops in a step (`adapter_ops`).

use std::collections::HashMap;

use fercuda_modelfile::{StoredTensor, TensorType};
use fercuda_runtime::{BufferId, Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::adapter_file::{AdapterFile, LoraPair, RowOrder, cut};
use crate::adapter_targets::{
    AdaptedPlace, TargetGroup, TargetModule, adapter_dtype, target_groups, widest,
};
use crate::config::ModelConfig;
use crate::error::{LlmError, refused, unsupported};
use crate::recorder::DeviceTensor;
use crate::request::AdapterId;
use crate::step_inputs::StepLimits;
use crate::tensors::ModelTensors;

type Result<T> = std::result::Result<T, LlmError>;

/// A factor of all adapters: its buffer, which has rows of all of them, and its memory, which has
/// adapters first.
#[derive(Debug)]
pub(crate) struct StackedFactor {
    buffer: BufferId,
    pub(crate) tensor: DeviceTensor,
    /// Rows of an adapter.
    pub(crate) rows: u64,
}

impl StackedFactor {
    fn reserve(session: &Session, dtype: Dtype, shape: [u64; 3]) -> Result<Self> {
        let [adapters, rows, width] = shape;
        let layout = Layout::contiguous(dtype, &[adapters * rows, width])?;
        let buffer = session.alloc(layout, Regime::Pool)?;
        Ok(Self {
            buffer,
            tensor: DeviceTensor::of(session.bind(buffer)?).reshape(&shape)?,
            rows,
        })
    }

    /// Has some rows of an adapter written.
    fn with_rows(
        &self,
        session: &Session,
        (adapter, first, count): (u64, u64, u64),
        write: impl FnOnce(BufferId) -> fercuda_runtime::Result<()>,
    ) -> Result<()> {
        let first = adapter * self.rows + first;
        let rows = first..first + count;
        let view = session.view(self.buffer, |all| Ok(all.slice(0, rows, 1)?))?;
        let written = write(view);
        session.free(view)?;
        Ok(written?)
    }
}

/// Factors of the matrices of a layer that read one vector.
#[derive(Debug)]
pub(crate) struct AdaptedGroup {
    pub(crate) target: TargetGroup,
    /// Rows of all modules, one after another.
    pub(crate) a: StackedFactor,
    /// Of each part.
    pub(crate) b: Vec<StackedFactor>,
}

/// Memory for the adapters of an engine.
#[derive(Debug)]
pub(crate) struct AdapterPool {
    /// Names of those that are loaded, by their numbers.
    pub(crate) names: Vec<String>,
    most: u64,
    pub(crate) rank: u64,
    dtype: Dtype,
    groups: Vec<AdaptedGroup>,
    by_place: HashMap<(usize, AdaptedPlace), usize>,
    /// x A^T of the tokens of a step.
    pub(crate) low: DeviceTensor,
    /// What is added to their products.
    pub(crate) added: DeviceTensor,
}

/// Adapters of the tokens of a step.
pub(crate) struct StepAdapters<'a> {
    pub(crate) pool: &'a AdapterPool,
    /// The number of each token's.
    pub(crate) numbers: DeviceTensor,
}

impl AdapterPool {
    /// Reserves memory for as many adapters as the limits say; none for none.
    pub(crate) fn reserve(
        session: &Session,
        tensors: &ModelTensors<'_>,
        limits: &StepLimits,
    ) -> Result<Option<Self>> {
        let (most, rank) = (limits.adapters, limits.adapter_rank);
        if most == 0 {
            return Ok(None);
        }
        let targets = target_groups(tensors);
        if targets.is_empty() {
            let architecture = &tensors.config().architecture;
            return Err(unsupported(
                format!("models of {architecture} have no matrices that adapters change here"),
                "the model without adapters",
            ));
        }
        let dtype = adapter_dtype(tensors, &targets);
        let [low, added] = widest(&targets, rank)
            .map(|each| DeviceTensor::reserve(session, Dtype::F32, &[limits.tokens * each]));
        let group = |target: TargetGroup| {
            let rows = target.modules.len() as u64 * rank;
            let factor = |shape| StackedFactor::reserve(session, dtype, shape);
            let b = target
                .parts
                .iter()
                .map(|it| factor([most, it.outputs, rank]));
            Ok(AdaptedGroup {
                b: b.collect::<Result<_>>()?,
                a: factor([most, rows, target.inputs])?,
                target,
            })
        };
        let groups: Vec<AdaptedGroup> = targets.into_iter().map(group).collect::<Result<_>>()?;
        let place = |it: &AdaptedGroup| (it.target.layer as usize, it.target.place);
        Ok(Some(Self {
            names: Vec::new(),
            most,
            rank,
            dtype,
            by_place: groups
                .iter()
                .enumerate()
                .map(|(at, it)| (place(it), at))
                .collect(),
            groups,
            low: low?,
            added: added?,
        }))
    }

    /// The factors of matrices, if adapters may change them.
    pub(crate) fn group(&self, place: (usize, AdaptedPlace)) -> Option<&AdaptedGroup> {
        Some(&self.groups[*self.by_place.get(&place)?])
    }

    /// Loads an adapter under a name; returns its number.
    pub(crate) fn load(
        &mut self,
        session: &Session,
        config: &ModelConfig,
        name: &str,
        (file, scale): (&AdapterFile, f32),
    ) -> Result<u32> {
        let number = self.names.len() as u64;
        if self.names.iter().any(|it| it == name) {
            let what = format!("an adapter {:?} is there", cut(name));
            return Err(refused(what, "another name"));
        }
        if number >= self.most {
            let what = format!(
                "the {} adapters that there is room for are loaded",
                self.most
            );
            return Err(refused(what, "a model that is opened for more adapters"));
        }
        if !scale.is_finite() {
            return Err(refused(format!("the scale {scale}"), "a finite number"));
        }
        let matched = self.matched(config, file)?;
        // All is checked before anything is written.
        let mut written = Vec::new();
        for (group, module, pair) in matched {
            written.push((
                group,
                module,
                self.encoded(config, (group, module), (file, pair, scale))?,
            ));
        }
        for group in &self.groups {
            for factor in group.b.iter().chain([&group.a]) {
                let rows = (number, 0, factor.rows);
                factor.with_rows(session, rows, |view| session.fill_bytes(view, 0))?;
            }
        }
        for (group, module, factors) in written {
            let own = &self.groups[group];
            let first = module as u64 * self.rank;
            let rows = (number, first, factors.rank);
            own.a
                .with_rows(session, rows, |view| session.upload_bytes(view, &factors.a))?;
            for (part, bytes) in &factors.b {
                let factor = &own.b[*part];
                let rows = (number, 0, factor.rows);
                factor.with_rows(session, rows, |view| session.upload_bytes(view, bytes))?;
            }
        }
        self.names.push(name.to_owned());
        Ok(number as u32)
    }

    /// Groups and modules of a file's pairs.
    fn matched<'a>(
        &self,
        config: &ModelConfig,
        file: &'a AdapterFile,
    ) -> Result<Vec<(usize, usize, &'a LoraPair)>> {
        let path = file.path().display();
        if let Some(own) = &file.architecture
            && *own != config.architecture
        {
            let what = format!(
                "{path} is for models of {:?}, and the model is of {:?}",
                cut(own),
                config.architecture
            );
            return Err(unsupported(what, "an adapter of this model"));
        }
        if file.rank() > self.rank {
            let what = format!(
                "{path} has the rank {}, and there is room for {}",
                file.rank(),
                self.rank
            );
            return Err(refused(what, "a model that is opened for that rank"));
        }
        let find = |layer: u64, part: &str| {
            let of_layer = self.groups.iter().enumerate();
            let mut of_layer = of_layer.filter(|(_, it)| it.target.layer == layer);
            of_layer.find_map(|(at, group)| {
                let mut modules = group.target.modules.iter();
                Some((at, modules.position(|it| it.name == part)?))
            })
        };
        let mut all = Vec::new();
        for ((layer, part), pair) in &file.pairs {
            let Some((group, module)) = find(*layer, part) else {
                let what = format!(
                    "{path} changes {:?} of layer {layer}, of which the model has no such matrix",
                    cut(part)
                );
                return Err(unsupported(what, self.possible()));
            };
            all.push((group, module, pair));
        }
        Ok(all)
    }

    /// The matrices that adapters may change.
    fn possible(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        let mut layers = 0;
        for group in &self.groups {
            layers = layers.max(group.target.layer + 1);
            for module in &group.target.modules {
                if !names.contains(&module.name) {
                    names.push(module.name);
                }
            }
        }
        let names = names.join(", ");
        format!("an adapter of this model, whose {layers} layers have {names}")
    }

    /// The bytes of a pair's factors, as they go to the device.
    fn encoded(
        &self,
        config: &ModelConfig,
        (group, module): (usize, usize),
        (file, pair, scale): (&AdapterFile, &LoraPair, f32),
    ) -> Result<EncodedPair> {
        let target = &self.groups[group].target;
        let own = target.modules[module];
        let (rank, inputs) = (pair.rank, target.inputs);
        let [a, b] = file.factors(pair)?;
        for (factor, wanted) in [(&a, [rank, inputs]), (&b, [own.outputs, rank])] {
            if factor.shape != wanted {
                let what = format!(
                    "{:?} of the adapter is {:?}, not {wanted:?}",
                    cut(&factor.name),
                    factor.shape
                );
                return Err(unsupported(what, "an adapter of this model"));
            }
        }
        let a_bytes = self.bytes_of(&a, &a.decode()?)?;
        let values = b.decode()?;
        let by = pair.scale * f64::from(scale);
        let rows = RowPermutation::between(config, file.order, own);
        let mut parts = Vec::new();
        for (at, part) in target.parts.iter().enumerate() {
            if part.module != module {
                continue;
            }
            let mut all = vec![0.0; (part.outputs * self.rank) as usize];
            let each = all.chunks_exact_mut(self.rank as usize);
            for (row, to) in (0..).zip(each) {
                let from = rows.source(part.rows.source(row)) as usize * rank as usize;
                let from = &values[from..from + rank as usize];
                for (to, value) in to.iter_mut().zip(from) {
                    *to = (f64::from(*value) * by) as f32;
                }
            }
            parts.push((at, self.bytes_of(&b, &all)?));
        }
        Ok(EncodedPair {
            rank,
            a: a_bytes,
            b: parts,
        })
    }

    /// Values of a tensor in the type of the device's memory.
    fn bytes_of(&self, tensor: &StoredTensor<'_>, values: &[f32]) -> Result<Vec<u8>> {
        let most = match self.dtype {
            Dtype::F16 => 65504.0,
            _ => f32::MAX,
        };
        if let Some(value) = values.iter().find(|it| it.is_nan() || it.abs() > most) {
            let (name, dtype) = (cut(&tensor.name), self.dtype);
            let what = format!("{name:?} of the adapter has {value}, which no {dtype} is");
            return Err(unsupported(what, "another file: this one may be damaged"));
        }
        let mut bytes = vec![0; values.len() * self.dtype.bytes() as usize];
        TensorType::Scalar(self.dtype).encode(values, &mut bytes)?;
        Ok(bytes)
    }
}

/// Refuses an adapter that is not loaded.
pub(crate) fn check_adapter(pool: Option<&AdapterPool>, adapter: Option<AdapterId>) -> Result<()> {
    let loaded = pool.map_or(0, |it| it.names.len());
    match adapter {
        Some(AdapterId(number)) if number as usize >= loaded => {
            let what = format!("adapter {number} of {loaded} that are loaded");
            Err(refused(what, "one that this engine has loaded"))
        }
        _ => Ok(()),
    }
}

/// Factors of a pair as bytes, and the part that each of the second ones is for.
struct EncodedPair {
    rank: u64,
    a: Vec<u8>,
    b: Vec<(usize, Vec<u8>)>,
}

/// Where the rows of heads are in an adapter of the other naming than the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowPermutation {
    Same,
    /// From halves to neighbours, of heads of so many rows.
    ToAdjacent(u64),
    /// From neighbours to halves.
    ToHalves(u64),
}

impl RowPermutation {
    fn between(config: &ModelConfig, order: RowOrder, module: TargetModule) -> Self {
        let Some(heads) = module.permuted_heads else {
            return RowPermutation::Same;
        };
        let length = module.outputs / heads;
        match (order, config.checkpoint.is_some()) {
            (RowOrder::Halves, true) | (RowOrder::Adjacent, false) => RowPermutation::Same,
            (RowOrder::Halves, false) => RowPermutation::ToAdjacent(length),
            (RowOrder::Adjacent, true) => RowPermutation::ToHalves(length),
        }
    }

    /// The row of the adapter that a row of the model's matrix is changed by.
    fn source(self, row: u64) -> u64 {
        match self {
            RowPermutation::Same => row,
            RowPermutation::ToAdjacent(length) => {
                let (head, own) = (row / length, row % length);
                head * length + own % 2 * (length / 2) + own / 2
            }
            RowPermutation::ToHalves(length) => {
                let (head, own) = (row / length, row % length);
                let half = length / 2;
                head * length + 2 * (own % half) + own / half
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_halves_and_of_neighbours_are_each_other_s_inverse() {
        let rows = |it: RowPermutation| (0..12).map(|row| it.source(row)).collect::<Vec<u64>>();
        let adjacent = rows(RowPermutation::ToAdjacent(6));
        assert_eq!(adjacent, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let halves = rows(RowPermutation::ToHalves(6));
        for (row, source) in (0..).zip(adjacent) {
            assert_eq!(halves[source as usize], row);
        }
    }
}
