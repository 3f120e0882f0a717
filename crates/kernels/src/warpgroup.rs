//! Matrix products by warpgroups of sm_90a: which tiles, and the launch.
//!
//! The text reads both factors, and writes a result of 16 bits, by tensor maps: boxes of the views
//! that the maps are made of, cut off at their extents. A result of 32 bits, the bias and the
//! residual it accesses at indices that it has compared with the extents.

use fercuda_tensor::Layout;

use crate::epilogue::{Activation, ProductEpilogue};
use crate::error::KernelError;
use crate::program::{MapDimensions, MapParameter, NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Elements along the depth that a slot of shared memory has.
const DEPTH: u64 = 64;
/// Elements of a line of 128 bytes, and rows of one instruction.
const LINE: u64 = 64;
/// Largest extent: places in a tensor map's tensor are numbers of 32 bits with a sign.
const MOST_EXTENT: u64 = i32::MAX as u64;
/// Limit of a tensor map's strides, in bytes.
const MOST_STRIDE: u64 = 1 << 40;

/// A way to divide a product among blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WarpgroupForm {
    rows: u64,
    columns: u64,
    /// Slots of shared memory for tiles of both factors.
    stages: u64,
    /// Blocks with tiles below each other, which share the right factor's.
    cluster: u64,
    /// Blocks that share the depth of a tile.
    split: u64,
    /// Whether warpgroups have tiles of their own, and take turns.
    is_in_turns: bool,
    /// Most columns of the result that go through shared memory at once.
    staged: u64,
    /// What it costs.
    cost: FormCost,
}

/// Microseconds of a form, by a model that was fitted to the times of 65 products on an H200: a
/// constant, and for each slot of a wave of blocks, each slot that a block has on average, each
/// wave, and each MB of the factors and the result.
type FormCost = [f64; 5];

const fn form(
    [rows, columns, stages, staged]: [u64; 4],
    [cluster, split]: [u64; 2],
    is_in_turns: bool,
    cost: FormCost,
) -> WarpgroupForm {
    WarpgroupForm {
        rows,
        columns,
        stages,
        cluster,
        split,
        is_in_turns,
        staged,
        cost,
    }
}

#[rustfmt::skip]
const FORMS: [WarpgroupForm; 18] = [
    form([128, 256, 4, 128], [1, 1], false, [1.77, 0.678, 0.0965, 0.168, 0.263]),
    form([128, 224, 4, 128], [1, 1], false, [2.00, 0.576, 0.108, 0.279, 0.250]),
    form([128, 192, 4, 128], [1, 1], false, [1.46, 0.515, 0.0738, 0.277, 0.303]),
    form([128, 160, 5, 128], [2, 1], false, [1.16, 0.425, 0.0642, 0.362, 0.303]),
    form([128, 128, 6, 128], [1, 1], false, [0.655, 0.259, 0.146, 2.64, 0.250]),
    form([128, 128, 6, 128], [2, 1], false, [2.19, 0.323, 0.0685, 0.198, 0.250]),
    form([128, 96, 7, 96], [2, 1], false, [1.36, 0.261, 0.0696, 0.245, 0.305]),
    form([256, 112, 4, 64], [1, 1], false, [1.06, 0.579, 0.128, 0.297, 0.275]),
    form([64, 192, 6, 64], [2, 1], true, [4.47, 0.236, 0.0752, 0.228, 0.235]),
    form([64, 128, 8, 64], [1, 1], true, [3.42, 0.129, 0.189, 1.33, 0.231]),
    form([64, 128, 8, 64], [2, 1], true, [4.49, 0.191, 0.0497, 0.827, 0.227]),
    form([64, 96, 8, 64], [1, 1], true, [3.95, 0.105, 0.136, 0.616, 0.226]),
    form([128, 128, 6, 64], [1, 2], false, [2.43, 0.283, 0.160, 3.45, 0.280]),
    form([128, 96, 7, 48], [1, 2], false, [1.38, 0.244, 0.137, 3.06, 0.290]),
    form([128, 64, 8, 32], [1, 2], false, [1.96, 0.270, 0.0917, 1.04, 0.232]),
    form([64, 96, 8, 48], [1, 2], false, [3.79, 0.105, 0.148, 4.88, 0.225]),
    form([64, 128, 8, 32], [1, 4], false, [5.38, 0.0872, 0.374, 1.58, 0.305]),
    form([128, 128, 6, 32], [1, 4], false, [1.57, 0.380, 0.237, 0.816, 0.444]),
];

impl WarpgroupForm {
    /// Warpgroups that multiply.
    fn warpgroups(&self) -> u64 {
        if self.rows > 64 || self.is_in_turns {
            2
        } else {
            1
        }
    }

    /// Columns of a box of the result, whose lines have a power of two bytes.
    fn stored(&self) -> u64 {
        match self.columns / self.split {
            own if own % 64 == 0 => 64,
            own if own % 32 == 0 => 32,
            _ => 16,
        }
    }

    /// Dynamic shared memory of a block, with room to begin at a multiple of 1024.
    fn shared_bytes(&self, is_right_along_k: bool, is_mapped: bool) -> u64 {
        let columns = match is_right_along_k {
            true => self.columns,
            false => self.columns.next_multiple_of(LINE),
        };
        let slots = self.stages * (self.rows + columns) * DEPTH * 2;
        let staged = match is_mapped {
            true => self.warpgroups() * 64 * self.staged * 2,
            false => 0,
        };
        slots + staged + 1024
    }

    /// Blocks of a cluster.
    fn blocks(&self) -> u64 {
        self.cluster * self.split
    }

    /// Rows and columns of tiles, of one matrix; those below each other in a cluster are one.
    fn tiles(&self, rows: u64, columns: u64) -> [u64; 2] {
        [
            rows.div_ceil(self.rows * self.cluster),
            columns.div_ceil(self.columns),
        ]
    }

    /// Whether each block of a cluster has a part of the depth.
    fn has_parts(&self, depth: u64) -> bool {
        let slots = depth.div_ceil(DEPTH);
        (self.split - 1) * slots.div_ceil(self.split) < slots
    }

    /// What it takes, in microseconds.
    fn estimate(&self, product: &ProductExtents, multiprocessors: u64) -> f64 {
        let [down, across] = self.tiles(product.rows, product.columns);
        let tiles = (down as f64) * (across as f64) * (product.batches as f64);
        let at_once = (multiprocessors / self.blocks()).max(1) as f64;
        let slots = product.depth.div_ceil(DEPTH).div_ceil(self.split) as f64;
        let waves = (tiles / at_once).ceil();
        let [constant, of_wave, on_average, wave, megabyte] = self.cost;
        let computed =
            waves * slots * of_wave + tiles / at_once * slots * on_average + waves * wave;
        let moved = product.megabytes() * megabyte;
        // The larger one, or some more where they are alike.
        constant + (computed.powi(4) + moved.powi(4)).sqrt().sqrt()
    }
}

/// Extents of a product.
#[derive(Clone, Copy, Debug)]
struct ProductExtents {
    rows: u64,
    columns: u64,
    depth: u64,
    batches: u64,
}

impl ProductExtents {
    fn megabytes(&self) -> f64 {
        let [rows, columns, depth] = [self.rows, self.columns, self.depth].map(|it| it as f64);
        (rows * depth + columns * depth + rows * columns) * self.batches as f64 * 2e-6
    }
}

/// A matrix as a tensor map has it.
struct MatrixLines {
    /// Whether neighbours are along the second of the two dimensions.
    is_along_last: bool,
    /// Elements of a line, lines, matrices.
    extents: [u64; 3],
    /// Bytes from a line to the next, and from a matrix to the next.
    strides: [u64; 2],
}

impl MatrixLines {
    /// The lines of a view of matrices, if they are at multiples of 16 bytes and the matrices are
    /// one after another or one. Without a preference neighbours may be along either dimension.
    fn of(view: &MemoryView, needs_last: bool) -> std::result::Result<Self, String> {
        let layout = view.layout();
        let ([outer @ .., rows, columns], [steps @ .., down, across]) =
            (layout.shape(), layout.strides())
        else {
            return Err("a factor of fewer than two dimensions".to_owned());
        };
        let is_line = |near: i64, extent: u64| near == 1 || extent == 1;
        let is_along_last = match (is_line(*across, *columns), is_line(*down, *rows)) {
            (true, _) => true,
            (false, true) if !needs_last => false,
            _ => return Err(format!("no neighbours in memory along a line of {layout}")),
        };
        let (near, lines, stride) = match is_along_last {
            true => (*columns, *rows, *down),
            false => (*rows, *columns, *across),
        };
        let line_bytes = near.saturating_mul(2);
        let stride = step_bytes(layout, lines, stride, line_bytes)?;
        let (matrices, stride_of_matrix) = matrices(layout, outer, steps)?;
        let matrix_bytes = stride.saturating_mul(lines);
        let stride_of_matrix = step_bytes(layout, matrices, stride_of_matrix, matrix_bytes)?;
        let extents = [near, lines, matrices];
        if extents.iter().any(|extent| *extent > MOST_EXTENT) {
            return Err(format!("an extent of {layout} is above {MOST_EXTENT}"));
        }
        Ok(Self {
            is_along_last,
            extents,
            strides: [stride, stride_of_matrix],
        })
    }

    /// A map by boxes of these elements along both dimensions.
    fn map(&self, view: &MemoryView, boxed: [u64; 2], is_written: bool) -> MapParameter {
        MapParameter {
            view: *view,
            is_written,
            dimensions: MapDimensions::Three(
                self.extents,
                [2, self.strides[0], self.strides[1]],
                [boxed[0] as u32, boxed[1] as u32, 1],
            ),
        }
    }
}

/// Bytes of a stride that a tensor map takes; of one element any one.
fn step_bytes(
    layout: &Layout,
    extent: u64,
    stride: i64,
    least: u64,
) -> std::result::Result<u64, String> {
    let bytes = match extent {
        1 => least.next_multiple_of(16),
        _ => u64::try_from(stride).map_or(0, |stride| stride.saturating_mul(2)),
    };
    match bytes >= least && bytes < MOST_STRIDE && bytes.is_multiple_of(16) {
        true => Ok(bytes),
        false => Err(format!(
            "lines of {layout} are not at multiples of 16 bytes, one after another"
        )),
    }
}

/// Number and stride of the matrices of a view, of which those that it repeats count once.
fn matrices(
    layout: &Layout,
    outer: &[u64],
    strides: &[i64],
) -> std::result::Result<(u64, i64), String> {
    let mut dimensions = outer
        .iter()
        .zip(strides)
        .filter(|(extent, _)| **extent != 1);
    if outer
        .iter()
        .zip(strides)
        .all(|(extent, stride)| *extent == 1 || *stride == 0)
    {
        return Ok((1, 0));
    }
    let Some((mut count, mut stride)) = dimensions.next().map(|(count, step)| (*count, *step))
    else {
        return Ok((1, 0));
    };
    for (extent, step) in dimensions {
        if stride != step.saturating_mul(extent.cast_signed()) {
            return Err(format!("matrices of {layout} are not one after another"));
        }
        (count, stride) = (count.saturating_mul(*extent), *step);
    }
    Ok((count, stride))
}

/// The launch for a product, if both factors and the result lie as tensor maps describe.
///
/// # Errors
/// [`KernelError::Views`] if they do not, or the device has too little shared memory.
pub(crate) fn step(
    program: &NativeProgram,
    [left, right, to]: [&MemoryView; 3],
    epilogue: &ProductEpilogue<'_>,
    residual: Option<&MemoryView>,
) -> Result<NativeStep> {
    let refused = |what: String| KernelError::Views { what };
    let (dtype, result) = (left.dtype(), to.dtype());
    let shape = to.shape();
    let [outer @ .., rows, columns] = shape else {
        return Err(refused(format!("a result of {to:?}")));
    };
    let depth = left.shape().last().copied().unwrap_or_default();
    check(program.is_aligned, || "memory at any address".to_owned())?;
    check(depth > 0 && !to.layout.is_empty(), || {
        "no products".to_owned()
    })?;
    let is_near = [left, right, to]
        .iter()
        .all(|view| view.offset_bytes % 16 == 0);
    check(is_near, || {
        "a first element that is at no multiple of 16 bytes".to_owned()
    })?;
    let of_left = MatrixLines::of(left, false).map_err(refused)?;
    let of_right = MatrixLines::of(right, false).map_err(refused)?;
    // Those of 32 bits are stored by threads, and so are others that no map describes.
    let of_result = match result == dtype {
        true => MatrixLines::of(to, true).ok(),
        false => None,
    };
    let extents = ProductExtents {
        rows: *rows,
        columns: *columns,
        depth,
        batches: outer.iter().product(),
    };
    let multiprocessors = u64::from(program.multiprocessors);
    let fits = |form: &&WarpgroupForm| {
        form.shared_bytes(!of_right.is_along_last, of_result.is_some())
            <= u64::from(program.most_shared_bytes)
            && form.has_parts(depth)
    };
    let by_cost = |a: &&WarpgroupForm, b: &&WarpgroupForm| {
        let [a, b] = [a, b].map(|form| form.estimate(&extents, multiprocessors));
        a.total_cmp(&b)
    };
    let form = FORMS.iter().filter(fits).min_by(by_cost);
    let form = form.ok_or_else(|| refused("too little shared memory for a tile".to_owned()))?;
    let [down, across] = form.tiles(*rows, *columns);
    let tiles = down.saturating_mul(across).saturating_mul(extents.batches);
    let blocks = match form.split {
        1 => tiles.min((multiprocessors / form.cluster).max(1)),
        _ => tiles,
    };
    let is_plain = epilogue.bias.is_none()
        && residual.is_none()
        && epilogue.scale.is_none()
        && epilogue.activation == Activation::None;
    let text = KernelText::new("warpgroup.cu", include_str!("../cuda/warpgroup.cu"))
        .specific()
        .with("ELEMENT", c_type(dtype))
        .with("RESULT", c_type(result))
        .with("ACC", "float")
        .with("ACTIVATION", epilogue.activation as u32)
        .with("IS_SCALED", u8::from(epilogue.scale.is_some()))
        .with("IS_PLAIN", u8::from(is_plain))
        .with("ERF", "erff")
        .with("EXP", "expf")
        .with("DIMS", shape.len())
        .with("LEFT_ALONG_K", u8::from(of_left.is_along_last))
        .with("RIGHT_ALONG_K", u8::from(!of_right.is_along_last))
        .with("ROWS", form.rows)
        .with("COLUMNS", form.columns)
        .with("WARPGROUPS", form.warpgroups())
        .with("STAGES", form.stages)
        .with("CLUSTER", form.cluster)
        .with("SPLIT", form.split)
        .with("STAGED", form.staged)
        .with("IN_TURNS", u8::from(form.is_in_turns))
        .with("IS_MAPPED", u8::from(of_result.is_some()));
    let shape_of = |view: &MemoryView| {
        let strides = view.layout.strides().iter().copied();
        ShapeParameter::new(shape.iter().copied().zip(strides))
    };
    let left_box = match of_left.is_along_last {
        true => [DEPTH, form.rows],
        false => [LINE, DEPTH],
    };
    let right_box = match of_right.is_along_last {
        true => [LINE, DEPTH],
        false => [DEPTH, form.columns / form.cluster],
    };
    let step = NativeStep::new(text, "warpgroup")
        .threads(128 * (form.warpgroups() as u32 + 1))
        .map(of_left.map(left, left_box, false))
        .map(of_right.map(right, right_box, false));
    let step = match &of_result {
        Some(lines) => step.map(lines.map(to, [form.stored(), 64], true)),
        None => step,
    };
    let step = step.address(to).writes().shape(shape_of(to));
    let step = match epilogue.bias {
        Some(bias) => {
            let bias = bias.broadcast(&[*columns])?;
            let stride = bias.layout.strides().first().copied().unwrap_or_default();
            step.address(&bias).u64(stride.cast_unsigned())
        }
        None => step.u64(0).u64(0),
    };
    let step = match residual {
        Some(residual) => step.address(residual).shape(shape_of(residual)),
        None => step.u64(0).shape(shape_of(to)),
    };
    let too_many = |count| KernelError::TooMany {
        what: "tiles of a product",
        count,
        most: u64::from(u32::MAX >> 3),
    };
    let count = |count: u64| match u32::try_from(count) {
        Ok(number) if number <= u32::MAX >> 3 => Ok(number),
        _ => Err(too_many(count)),
    };
    let mut step = step
        .f64(epilogue.scale.unwrap_or(1.0))
        .u64(depth)
        .u32(u32::from(of_left.extents[2] > 1))
        .u32(u32::from(of_right.extents[2] > 1))
        .u32(count(down)?)
        .u32(count(across)?)
        .u32(count(tiles)?)
        .blocks([blocks.saturating_mul(form.blocks()), 1, 1])?;
    step.cluster = form.blocks() as u32;
    step.shared_bytes = form.shared_bytes(!of_right.is_along_last, of_result.is_some()) as u32;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(rows: u64, columns: u64, depth: u64) -> WarpgroupForm {
        let batches = 1;
        let extents = ProductExtents {
            rows,
            columns,
            depth,
            batches,
        };
        let by_cost = |a: &&WarpgroupForm, b: &&WarpgroupForm| {
            let [a, b] = [a, b].map(|form| form.estimate(&extents, 132));
            a.total_cmp(&b)
        };
        let parts = FORMS.iter().filter(|form| form.has_parts(depth));
        *parts.min_by(by_cost).unwrap()
    }

    #[test]
    fn every_form_fits_the_shared_memory_of_an_h200() {
        for form in FORMS {
            assert!(form.shared_bytes(true, true) <= 226 << 10, "{form:?}");
            assert_eq!(form.staged % form.stored(), 0, "{form:?}");
            // A box has at most 256 elements along a dimension, and begins at a pattern's start.
            let share = form.columns / form.cluster;
            assert!(share <= 256 && share % 8 == 0, "{form:?}");
            // Sums are sent by four, and stored by pairs of eight columns.
            assert_eq!(form.columns / form.split % 16, 0, "{form:?}");
        }
    }

    #[test]
    fn tiles_follow_the_product() {
        // Few rows and a long depth: blocks share it.
        let few = best(64, 4096, 14336);
        assert_eq!((few.rows, few.split), (64, 2));
        // As many tiles as multiprocessors, or nearly a multiple.
        let middle = best(512, 4096, 4096);
        assert_eq!((middle.rows, middle.columns), (128, 128));
        let uneven = best(512, 14336, 4096);
        assert_eq!((uneven.rows, uneven.columns), (128, 224));
    }

    #[test]
    fn no_block_is_without_a_part_of_the_depth() {
        let split = FORMS.iter().find(|form| form.split == 2).unwrap();
        assert!(!split.has_parts(64));
        assert!(split.has_parts(65));
        // Nine slots by four: three, three, three and none.
        let split = FORMS.iter().find(|form| form.split == 4).unwrap();
        assert!(!split.has_parts(9 * 64));
        assert!(split.has_parts(10 * 64));
    }
}
