//! Rows of a box of a tensor: the bytes that each covers, and where they lie in shared memory.
//!
//! A row is the innermost dimension of a box, or a pixel's channels of an im2col copy. Rows lie one
//! behind the other in shared memory, as if nothing were outside of the tensor, each at a line of
//! the swizzle's span if there is one; then the swizzle exchanges chunks, by the address in shared
//! memory. What no manual says was recorded on an H200 (driver 580.159.04): where rows shorter
//! than the span lie, what a fill of NaN is, and what becomes of `tf32` and of flushed types.

use crate::tensor_map::{MAX_RANK, MapElement, MapMode, Swizzle, TensorMap};

/// A row of a box: of its bytes those inside the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxRow {
    /// Global address of the first byte inside.
    pub(crate) addr: u64,
    /// Where in the row that is.
    pub(crate) from: u32,
    /// Bytes inside; 0 if none are.
    pub(crate) len: u32,
}

const OUTSIDE: BoxRow = BoxRow {
    addr: 0,
    from: 0,
    len: 0,
};

/// A box at a place of a tensor.
#[derive(Debug)]
pub(crate) struct TensorBox<'a> {
    map: &'a TensorMap,
    start: [i64; MAX_RANK],
    /// Of an im2col copy, the width first.
    offsets: [i64; 3],
}

impl<'a> TensorBox<'a> {
    pub(crate) fn new(map: &'a TensorMap, start: [i32; MAX_RANK], offsets: [u16; 3]) -> Self {
        TensorBox {
            map,
            start: start.map(i64::from),
            offsets: offsets.map(i64::from),
        }
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> u32 {
        let elements = match self.map.mode {
            MapMode::Tiled => self.map.box_dims[0],
            MapMode::Im2col => self.map.channels,
        };
        elements * self.map.element.bytes()
    }

    /// Elements along a dimension of a tiled box.
    fn count(&self, n: usize) -> u32 {
        self.map.box_dims[n].div_ceil(self.map.steps[n].max(1))
    }

    pub(crate) fn rows(&self) -> u32 {
        match self.map.mode {
            MapMode::Tiled => (1..self.map.rank as usize).map(|n| self.count(n)).product(),
            MapMode::Im2col => self.map.pixels,
        }
    }

    /// Bytes from one row to the next in shared memory.
    pub(crate) fn pitch(&self) -> u32 {
        self.row_bytes().max(self.map.swizzle.span())
    }

    /// Bytes of the box that are copied, those outside of the tensor too.
    pub(crate) fn bytes(&self) -> u32 {
        self.row_bytes() * self.rows()
    }

    /// Bytes of shared memory that the box reaches: a swizzle exchanges chunks of whole lines.
    pub(crate) fn reach(&self) -> u32 {
        match self.map.swizzle {
            Swizzle::None => self.bytes(),
            _ => (self.pitch() * self.rows()).next_multiple_of(128),
        }
    }

    /// Calls `f` for each row, in their order in shared memory, until it returns `None`.
    pub(crate) fn each(&self, f: impl FnMut(BoxRow) -> Option<()>) -> Option<()> {
        match self.map.mode {
            MapMode::Tiled => self.each_tiled(f),
            MapMode::Im2col => self.each_pixel(f),
        }
    }

    fn each_tiled(&self, mut f: impl FnMut(BoxRow) -> Option<()>) -> Option<()> {
        let rank = self.map.rank as usize;
        let mut index = [0; MAX_RANK];
        for _ in 0..self.rows() {
            let mut at = self.start;
            for n in 1..rank {
                at[n] += i64::from(index[n] * self.map.steps[n]);
            }
            f(self.row(&at))?;
            for (n, index) in index.iter_mut().enumerate().take(rank).skip(1) {
                *index += 1;
                if *index < self.count(n) {
                    break;
                }
                *index = 0;
            }
        }
        Some(())
    }

    /// Pixels of an im2col copy: along the width between the corners of the box of pixels, then
    /// the height, the depth and the images.
    fn each_pixel(&self, mut f: impl FnMut(BoxRow) -> Option<()>) -> Option<()> {
        let map = self.map;
        let spatial = map.rank as usize - 2;
        let mut at = self.start;
        for _ in 0..map.pixels {
            let mut shifted = at;
            for n in 0..spatial {
                shifted[n + 1] += self.offsets[n];
            }
            f(self.row(&shifted))?;
            let mut n = 0;
            loop {
                if n == spatial {
                    at[n + 1] += 1;
                    break;
                }
                at[n + 1] += i64::from(map.steps[n + 1]);
                let last = map.dims[n + 1] as i64 - 1 + i64::from(map.upper[n]);
                if at[n + 1] <= last {
                    break;
                }
                at[n + 1] = i64::from(map.lower[n]);
                n += 1;
            }
        }
        Some(())
    }

    /// The row whose first element is at those coordinates.
    fn row(&self, at: &[i64; MAX_RANK]) -> BoxRow {
        let map = self.map;
        let rank = map.rank as usize;
        let inside = |n: usize| at[n] >= 0 && (at[n] as u64) < map.dims[n];
        if !(1..rank).all(inside) {
            return OUTSIDE;
        }
        let size = i64::from(map.element.bytes());
        let elements = i64::from(self.row_bytes()) / size;
        let first = (-at[0]).clamp(0, elements);
        let end = (map.dims[0] as i64 - at[0]).clamp(first, elements);
        if first == end {
            return OUTSIDE;
        }
        let mut addr = map.address.wrapping_add(((at[0] + first) * size) as u64);
        for (&at, &stride) in at[1..rank].iter().zip(&map.strides) {
            addr = addr.wrapping_add((at as u64).wrapping_mul(stride));
        }
        BoxRow {
            addr,
            from: (first * size) as u32,
            len: ((end - first) * size) as u32,
        }
    }
}

/// Fills `row` with what elements outside of the tensor are.
pub(crate) fn fill(map: &TensorMap, row: &mut [u8]) {
    if !map.fills_nan {
        row.fill(0);
        return;
    }
    // The same 16 bits in elements of any size.
    for part in row.as_chunks_mut::<2>().0 {
        *part = [0xf7, 0x7f];
    }
}

/// What a copy into shared memory makes of elements of `tf32`: they are rounded, and each NaN is
/// the same one. Subnormal numbers of flushed types stay as they are.
pub(crate) fn convert(element: MapElement, bytes: &mut [u8]) {
    const NAN: u32 = 0x7fff_e000;
    if !matches!(element, MapElement::Tf32 | MapElement::Tf32Ftz) {
        return;
    }
    for cell in bytes.as_chunks_mut::<4>().0 {
        let v = u32::from_le_bytes(*cell);
        let rounded = match v & 0x7fff_ffff {
            0x7f80_0001.. => NAN,
            0x7f80_0000 => v,
            _ => v.wrapping_add(0xfff + (v >> 13 & 1)) & !0x1fff,
        };
        *cell = rounded.to_le_bytes();
    }
}

/// Puts a row of a box into shared memory: at `at`, before the swizzle.
#[inline]
pub(crate) fn scatter(map: &TensorMap, shared: &mut [u8], at: u32, row: &[u8]) {
    if map.swizzle == Swizzle::None {
        shared[at as usize..][..row.len()].copy_from_slice(row);
        return;
    }
    let atom = map.swizzle.atom().min(16) as usize;
    for (n, chunk) in row.chunks(atom).enumerate() {
        let to = map.swizzle.apply(at + (n * atom) as u32) as usize;
        shared[to..to + chunk.len()].copy_from_slice(chunk);
    }
}

/// Reads a row of a box out of shared memory; the reverse of [`scatter`].
#[inline]
pub(crate) fn gather(map: &TensorMap, shared: &[u8], at: u32, row: &mut [u8]) {
    let atom = map.swizzle.atom().min(16) as usize;
    for (n, chunk) in row.chunks_mut(atom).enumerate() {
        let from = map.swizzle.apply(at + (n * atom) as u32) as usize;
        chunk.copy_from_slice(&shared[from..from + chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_map::Interleave;

    fn map(mode: MapMode) -> TensorMap {
        TensorMap {
            mode,
            element: MapElement::U16,
            rank: 3,
            interleave: Interleave::None,
            swizzle: Swizzle::B32,
            fills_nan: false,
            address: 4096,
            dims: [20, 5, 3, 1, 1],
            strides: [48, 480, 0, 0],
            box_dims: [16, 4, 2, 1, 1],
            steps: [1, 2, 1, 1, 1],
            lower: [-1, 0, 0],
            upper: [-1, 0, 0],
            channels: 8,
            pixels: 7,
        }
    }

    fn rows(found: &TensorBox<'_>) -> Vec<BoxRow> {
        let mut rows = Vec::new();
        found.each(|row| {
            rows.push(row);
            Some(())
        });
        rows
    }

    #[test]
    fn rows_of_a_box_are_cut_at_the_tensor() {
        let map = map(MapMode::Tiled);
        let found = TensorBox::new(&map, [-3, 3, 2, 0, 0], [0; 3]);
        let (addr, from, len) = (4096 + 3 * 48 + 2 * 480, 6, 26);
        assert_eq!((found.rows(), found.bytes(), found.reach()), (4, 128, 128));
        assert_eq!(
            rows(&found),
            [BoxRow { addr, from, len }, OUTSIDE, OUTSIDE, OUTSIDE]
        );
    }

    #[test]
    fn pixels_run_between_the_corners_of_their_box() {
        let mut map = map(MapMode::Im2col);
        map.steps[1] = 1;
        // From width 2 to the last, 3, then the next image from -1 on, which an offset shifts.
        let found = TensorBox::new(&map, [4, 2, 1, 0, 0], [1, 0, 0]);
        let at = |w: u64, n: u64| BoxRow {
            addr: 4096 + 8 + w * 48 + n * 480,
            from: 0,
            len: 16,
        };
        let wanted: Vec<BoxRow> = [(3, 1), (4, 1), (0, 2), (1, 2), (2, 2), (3, 2), (4, 2)]
            .map(|(w, n)| at(w, n))
            .to_vec();
        assert_eq!(rows(&found), wanted);
    }

    #[test]
    fn a_row_that_is_scattered_comes_back() {
        let map = map(MapMode::Tiled);
        let row: Vec<u8> = (0..32).collect();
        let mut shared = vec![0; 256];
        scatter(&map, &mut shared, 128, &row);
        assert_eq!((shared[128], shared[144]), (16, 0));
        let mut back = vec![0; 32];
        gather(&map, &shared, 128, &mut back);
        assert_eq!(back, row);
    }

    #[test]
    fn values_are_rounded_by_their_type_and_not_flushed() {
        let of = |element, v: u32| {
            let mut bytes = v.to_le_bytes();
            convert(element, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        assert_eq!(of(MapElement::Tf32, 0x3f80_1000), 0x3f80_0000);
        assert_eq!(of(MapElement::Tf32, 0x3f80_3000), 0x3f80_4000);
        assert_eq!(of(MapElement::Tf32, 0xff80_0001), 0x7fff_e000);
        assert_eq!(of(MapElement::Tf32, 0xff80_0000), 0xff80_0000);
        assert_eq!(of(MapElement::F32Ftz, 0x8000_0001), 0x8000_0001);
        assert_eq!(of(MapElement::F32, 0x8000_0001), 0x8000_0001);
    }
}
