//! Matrices of a model that adapters change, and the rows of an adapter that each of them gets.

use fercuda_tensor::Dtype;

use crate::step_inputs::StepLimits;
use crate::tensors::ModelTensors;

/// Products of a layer that read one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AdaptedPlace {
    /// Those for queries, keys, values and gates.
    Attention,
    /// The one behind attention.
    Out,
    /// Those of the gated unit.
    Gates,
    /// The one behind the gated unit.
    Down,
}

/// Which of an adapter's rows are those of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartRows {
    /// All from this one on.
    From(u64),
    /// Groups of so many rows in turns: the first of each pair, or the second.
    Alternating { rows: u64, is_second: bool },
}

impl PartRows {
    /// The adapter's row of a row of the part.
    pub(crate) fn source(self, row: u64) -> u64 {
        match self {
            PartRows::From(first) => first + row,
            PartRows::Alternating { rows, is_second } => {
                (2 * (row / rows) + u64::from(is_second)) * rows + row % rows
            }
        }
    }
}

/// A matrix, by the name that a file of the model has or would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetModule {
    pub(crate) name: &'static str,
    pub(crate) outputs: u64,
    /// Heads whose rows lie in another order in files of llama.cpp than in checkpoints.
    pub(crate) permuted_heads: Option<u64>,
}

/// Outputs that are next to each other in the memory of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetPart {
    /// Number of its module in the group.
    pub(crate) module: usize,
    /// Number of the result, and the first of its columns.
    pub(crate) result: usize,
    pub(crate) first: u64,
    pub(crate) outputs: u64,
    pub(crate) rows: PartRows,
}

/// Matrices of a layer that read one vector.
#[derive(Clone, Debug)]
pub(crate) struct TargetGroup {
    pub(crate) layer: u64,
    pub(crate) place: AdaptedPlace,
    pub(crate) inputs: u64,
    pub(crate) modules: Vec<TargetModule>,
    pub(crate) parts: Vec<TargetPart>,
}

impl TargetGroup {
    fn new(layer: u64, place: AdaptedPlace, inputs: u64) -> Self {
        Self {
            layer,
            place,
            inputs,
            modules: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Adds a module; returns its number.
    fn module(&mut self, name: &'static str, outputs: u64) -> usize {
        self.modules.push(TargetModule {
            name,
            outputs,
            permuted_heads: None,
        });
        self.modules.len() - 1
    }

    /// Adds outputs behind those that a result has.
    fn part(&mut self, module: usize, result: usize, outputs: u64, rows: PartRows) {
        let first = self.width(result);
        self.parts.push(TargetPart {
            module,
            result,
            first,
            outputs,
            rows,
        });
    }

    /// Adds a module whose outputs are one part.
    fn whole(&mut self, name: &'static str, result: usize, outputs: u64) -> usize {
        let module = self.module(name, outputs);
        self.part(module, result, outputs, PartRows::From(0));
        module
    }

    /// Columns of a result.
    pub(crate) fn width(&self, result: usize) -> u64 {
        let own = self.parts.iter().filter(|it| it.result == result);
        own.map(|it| it.outputs).sum()
    }

    /// Number of results.
    pub(crate) fn results(&self) -> usize {
        self.parts.iter().map(|it| it.result + 1).max().unwrap_or(0)
    }
}

/// The groups of a layer with attention.
fn of_attention(tensors: &ModelTensors<'_>, layer: u64) -> [TargetGroup; 2] {
    let config = tensors.config();
    let shared = config.shared_heads;
    let [q, k, v] = [
        config.heads * config.key_length,
        shared * config.key_length,
        shared * config.value_length,
    ];
    let mut inputs = TargetGroup::new(layer, AdaptedPlace::Attention, config.hidden);
    if tensors.has(&format!("blk.{layer}.attn_qkv.weight")) {
        inputs.whole("attn_qkv", 0, q + k + v);
    } else if config.spec.has_attention_gate {
        let both = inputs.module("attn_q", 2 * q);
        let rows = |is_second| PartRows::Alternating {
            rows: config.key_length,
            is_second,
        };
        inputs.part(both, 0, q, rows(false));
        inputs.whole("attn_k", 0, k);
        inputs.whole("attn_v", 0, v);
        inputs.part(both, 0, q, rows(true));
    } else {
        let queries = inputs.whole("attn_q", 0, q);
        let keys = inputs.whole("attn_k", 0, k);
        inputs.whole("attn_v", 0, v);
        // Of Llama 4 no converter permutes.
        if config.architecture == "llama" {
            inputs.modules[queries].permuted_heads = Some(config.heads);
            inputs.modules[keys].permuted_heads = Some(shared);
        }
    }
    let attended = config.heads * config.value_length;
    let mut out = TargetGroup::new(layer, AdaptedPlace::Out, attended);
    out.whole("attn_output", 0, config.hidden);
    [inputs, out]
}

/// The groups of a layer with one gated unit.
fn of_unit(tensors: &ModelTensors<'_>, layer: u64) -> [TargetGroup; 2] {
    let config = tensors.config();
    let (hidden, inner) = (config.hidden, config.feed_forward);
    let mut gates = TargetGroup::new(layer, AdaptedPlace::Gates, hidden);
    match tensors.has(&format!("blk.{layer}.ffn_gate.weight")) {
        true => {
            gates.whole("ffn_gate", 0, inner);
            gates.whole("ffn_up", 1, inner);
        }
        false => {
            let both = gates.module("ffn_up", 2 * inner);
            gates.part(both, 0, inner, PartRows::From(0));
            gates.part(both, 1, inner, PartRows::From(inner));
        }
    }
    let mut down = TargetGroup::new(layer, AdaptedPlace::Down, inner);
    down.whole("ffn_down", 0, hidden);
    [gates, down]
}

/// All groups of a model: those of attention, and of units that are not experts'.
pub(crate) fn target_groups(tensors: &ModelTensors<'_>) -> Vec<TargetGroup> {
    let config = tensors.config();
    let mut all = Vec::new();
    for layer in 0..config.layers {
        if config.spec.has_attention && !config.is_recurrent(layer) {
            all.extend(of_attention(tensors, layer));
        }
        if config.spec.has_unit && tensors.experts_of(layer).is_none() {
            all.extend(of_unit(tensors, layer));
        }
    }
    all
}

/// The type of adapters in device memory: that of the model's matrices if these are floats of a
/// type, which loses nothing that matters, else f16.
pub(crate) fn adapter_dtype(tensors: &ModelTensors<'_>, groups: &[TargetGroup]) -> Dtype {
    let out = groups.iter().find(|it| it.place == AdaptedPlace::Out);
    let name = out.map(|it| format!("blk.{}.attn_output.weight", it.layer));
    let known = name.and_then(|it| tensors.matrix_type(&it));
    known.unwrap_or(Dtype::F16)
}

/// Elements of the low vectors of a token that a group has, and of its widest result: the most of
/// all groups.
pub(crate) fn widest(groups: &[TargetGroup], rank: u64) -> [u64; 2] {
    let low = groups.iter().map(|it| it.modules.len() as u64 * rank);
    let widths = groups
        .iter()
        .flat_map(|it| (0..it.results()).map(|result| it.width(result)));
    [low.max().unwrap_or(0), widths.max().unwrap_or(0)]
}

/// Bytes that the adapters of an engine need, with the memory of its steps for them.
pub(crate) fn adapter_bytes(tensors: &ModelTensors<'_>, limits: &StepLimits) -> u64 {
    if limits.adapters == 0 {
        return 0;
    }
    // Numbers of a file that lies may be of any size.
    let whole = |number: u64| u128::from(number);
    let (groups, rank) = (target_groups(tensors), whole(limits.adapter_rank));
    let of_group = |group: &TargetGroup| {
        let outputs: u128 = group.parts.iter().map(|it| whole(it.outputs)).sum();
        rank * (group.modules.len() as u128 * whole(group.inputs) + outputs)
    };
    let each: u128 = groups.iter().map(of_group).sum();
    let dtype = adapter_dtype(tensors, &groups);
    let steps: u128 = widest(&groups, limits.adapter_rank).map(whole).iter().sum();
    let all =
        whole(limits.adapters) * each * whole(dtype.bytes()) + 4 * whole(limits.tokens) * steps;
    u64::try_from(all).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_the_rows_that_matrices_have() {
        let rows = |it: PartRows| (0..6).map(|row| it.source(row)).collect::<Vec<u64>>();
        assert_eq!(rows(PartRows::From(3)), [3, 4, 5, 6, 7, 8]);
        let turns = |is_second| PartRows::Alternating { rows: 2, is_second };
        assert_eq!(rows(turns(false)), [0, 1, 4, 5, 8, 9]);
        assert_eq!(rows(turns(true)), [2, 3, 6, 7, 10, 11]);
    }
}
