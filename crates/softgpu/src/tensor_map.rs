//! Tensor maps: what the 128 opaque bytes of a `CUtensorMap` hold on this device.
//!
//! The layout is this device's own: a magic, then the fields in the order of [`TensorMap::pack`],
//! little-endian. A map of another driver, or memory that holds none, has another magic and is
//! refused where it is used. The rules of values are those that the driver API's manual gives for
//! `cuTensorMapEncodeTiled` and its kin; [`TensorMap::fault`] says which one is broken, as
//! `tensormap.replace` can break them in a map that was encoded well.

/// Bytes of a tensor map.
pub(crate) const TENSOR_MAP_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"fRtmap1\0";
/// Largest rank of a tensor.
pub(crate) const MAX_RANK: usize = 5;

/// How elements of a tensor are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapMode {
    Tiled,
    Im2col,
}

/// How an element is read, filled and reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapElement {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    Bf16,
    F32Ftz,
    Tf32,
    Tf32Ftz,
}

impl MapElement {
    /// By the values of `CUtensorMapDataType`.
    const BY_DRIVER: [MapElement; 13] = [
        MapElement::U8,
        MapElement::U16,
        MapElement::U32,
        MapElement::S32,
        MapElement::U64,
        MapElement::S64,
        MapElement::F16,
        MapElement::F32,
        MapElement::F64,
        MapElement::Bf16,
        MapElement::F32Ftz,
        MapElement::Tf32,
        MapElement::Tf32Ftz,
    ];
    /// By the values of `tensormap.replace`, which has another order.
    const BY_INSTRUCTION: [MapElement; 13] = [
        MapElement::U8,
        MapElement::U16,
        MapElement::U32,
        MapElement::S32,
        MapElement::U64,
        MapElement::S64,
        MapElement::F16,
        MapElement::F32,
        MapElement::F32Ftz,
        MapElement::F64,
        MapElement::Bf16,
        MapElement::Tf32,
        MapElement::Tf32Ftz,
    ];

    pub(crate) fn of_driver(value: u32) -> Option<Self> {
        Self::BY_DRIVER.get(value as usize).copied()
    }

    pub(crate) fn of_instruction(value: u32) -> Option<Self> {
        Self::BY_INSTRUCTION.get(value as usize).copied()
    }

    pub(crate) fn bytes(self) -> u32 {
        match self {
            MapElement::U8 => 1,
            MapElement::U16 | MapElement::F16 | MapElement::Bf16 => 2,
            MapElement::U64 | MapElement::S64 | MapElement::F64 => 8,
            _ => 4,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        !matches!(
            self,
            MapElement::U8
                | MapElement::U16
                | MapElement::U32
                | MapElement::S32
                | MapElement::U64
                | MapElement::S64
        )
    }
}

/// Channels stored in slices of so many bytes, each behind the pixels of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interleave {
    None,
    Slices16,
    Slices32,
}

impl Interleave {
    pub(crate) fn of(value: u32) -> Option<Self> {
        [Interleave::None, Interleave::Slices16, Interleave::Slices32]
            .get(value as usize)
            .copied()
    }

    /// Bytes of a slice; 0 without.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Interleave::None => 0,
            Interleave::Slices16 => 16,
            Interleave::Slices32 => 32,
        }
    }
}

/// The pattern by which chunks change places within a line of shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swizzle {
    None,
    B32,
    B64,
    B128,
    B128Atom32,
    B128Atom32Flip8,
    B128Atom64,
}

impl Swizzle {
    const ALL: [Swizzle; 7] = [
        Swizzle::None,
        Swizzle::B32,
        Swizzle::B64,
        Swizzle::B128,
        Swizzle::B128Atom32,
        Swizzle::B128Atom32Flip8,
        Swizzle::B128Atom64,
    ];

    pub(crate) fn of(value: u32) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }

    /// Bytes within which chunks change places; 0 without.
    pub(crate) fn span(self) -> u32 {
        match self {
            Swizzle::None => 0,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            _ => 128,
        }
    }

    /// What `tensormap.replace` calls the mode and the atomicity.
    fn with_mode(self, mode: u32) -> Option<Self> {
        Some(match (mode, self) {
            (3, s) if s.span() == 128 => s,
            (0..=3, _) => Self::ALL[mode as usize],
            _ => return None,
        })
    }

    /// Where the byte that would lie at `address` without a swizzle lies: bits of the line number
    /// are added, without carry, to those of the chunk in the line. Both are of the address in
    /// shared memory, not of the offset in the box.
    #[inline(always)]
    pub(crate) fn apply(self, address: u32) -> u32 {
        match self {
            Swizzle::None => address,
            Swizzle::B32 => address ^ (address >> 7 & 1) << 4,
            Swizzle::B64 => address ^ (address >> 7 & 3) << 4,
            Swizzle::B128 => address ^ (address >> 7 & 7) << 4,
            Swizzle::B128Atom32 => address ^ (address >> 7 & 3) << 5,
            Swizzle::B128Atom32Flip8 => address ^ (address >> 7 & 3) << 5 ^ (address >> 7 & 1) << 3,
            Swizzle::B128Atom64 => address ^ (address >> 7 & 1) << 6,
        }
    }

    /// Whether chunks of another size than 16 bytes change places, which devices of compute
    /// capability 9.0 cannot do.
    pub(crate) fn has_atoms(self) -> bool {
        !matches!(
            self,
            Swizzle::None | Swizzle::B32 | Swizzle::B64 | Swizzle::B128
        )
    }

    /// Bytes that stay together.
    pub(crate) fn atom(self) -> u32 {
        match self {
            Swizzle::B128Atom32 => 32,
            Swizzle::B128Atom32Flip8 => 8,
            Swizzle::B128Atom64 => 64,
            _ => 16,
        }
    }
}

/// A tensor in global memory, and the boxes in which it is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub(crate) mode: MapMode,
    pub(crate) element: MapElement,
    pub(crate) rank: u32,
    pub(crate) interleave: Interleave,
    pub(crate) swizzle: Swizzle,
    /// Whether floats outside are a NaN, and not zero.
    pub(crate) fills_nan: bool,
    pub(crate) address: u64,
    /// Elements along each dimension, the innermost first.
    pub(crate) dims: [u64; MAX_RANK],
    /// Bytes from one to the next along each dimension but the innermost.
    pub(crate) strides: [u64; MAX_RANK - 1],
    /// Of a tiled map: elements that a box spans along each dimension.
    pub(crate) box_dims: [u32; MAX_RANK],
    pub(crate) steps: [u32; MAX_RANK],
    /// Of an im2col map: corners of the box of pixels, the width first.
    pub(crate) lower: [i32; 3],
    pub(crate) upper: [i32; 3],
    pub(crate) channels: u32,
    pub(crate) pixels: u32,
}

impl TensorMap {
    pub(crate) fn pack(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut out = Vec::with_capacity(TENSOR_MAP_BYTES);
        out.extend(MAGIC);
        let position = |all: &[Swizzle], s| all.iter().position(|x| *x == s).unwrap_or(0) as u8;
        let element = MapElement::BY_DRIVER
            .iter()
            .position(|e| *e == self.element);
        out.extend([
            self.mode as u8,
            element.unwrap_or(0) as u8,
            self.rank as u8,
            self.interleave as u8,
            position(&Swizzle::ALL, self.swizzle),
            self.fills_nan as u8,
        ]);
        out.extend(self.address.to_le_bytes());
        // 2^32 elements are one too many for 32 bits.
        for n in self.dims {
            out.extend((n.wrapping_sub(1) as u32).to_le_bytes());
        }
        for n in self.strides {
            out.extend(&n.to_le_bytes()[..6]);
        }
        for n in self.box_dims {
            out.extend((n as u16).to_le_bytes());
        }
        out.extend(self.steps.map(|n| n as u8));
        for n in self.lower.iter().chain(&self.upper) {
            out.extend((*n as i16).to_le_bytes());
        }
        out.extend((self.channels as u16).to_le_bytes());
        out.extend((self.pixels as u16).to_le_bytes());
        let mut bytes = [0; TENSOR_MAP_BYTES];
        bytes[..out.len()].copy_from_slice(&out);
        bytes
    }

    /// The map in `bytes`; `None` if they hold none of this device's.
    pub(crate) fn unpack(bytes: &[u8; TENSOR_MAP_BYTES]) -> Option<Self> {
        let rest = &mut bytes.strip_prefix(&MAGIC)?;
        fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
            let (head, tail) = rest.split_first_chunk::<N>()?;
            *rest = tail;
            Some(*head)
        }
        let [mode, element, rank, interleave, swizzle, nan] = take::<6>(rest)?;
        let mut map = TensorMap {
            mode: match mode {
                0 => MapMode::Tiled,
                1 => MapMode::Im2col,
                _ => return None,
            },
            element: MapElement::of_driver(element.into())?,
            rank: rank.into(),
            interleave: Interleave::of(interleave.into())?,
            swizzle: Swizzle::of(swizzle.into())?,
            fills_nan: nan != 0,
            address: u64::from_le_bytes(take(rest)?),
            dims: [0; MAX_RANK],
            strides: [0; MAX_RANK - 1],
            box_dims: [0; MAX_RANK],
            steps: [0; MAX_RANK],
            lower: [0; 3],
            upper: [0; 3],
            channels: 0,
            pixels: 0,
        };
        for n in &mut map.dims {
            *n = u64::from(u32::from_le_bytes(take(rest)?)) + 1;
        }
        for n in &mut map.strides {
            let low: [u8; 6] = take(rest)?;
            let mut wide = [0; 8];
            wide[..6].copy_from_slice(&low);
            *n = u64::from_le_bytes(wide);
        }
        for n in &mut map.box_dims {
            *n = u16::from_le_bytes(take(rest)?).into();
        }
        map.steps = take::<MAX_RANK>(rest)?.map(u32::from);
        for n in map.lower.iter_mut().chain(&mut map.upper) {
            *n = i16::from_le_bytes(take(rest)?).into();
        }
        map.channels = u16::from_le_bytes(take(rest)?).into();
        map.pixels = u16::from_le_bytes(take(rest)?).into();
        Some(map)
    }

    /// Bytes of the innermost dimension of a box, in shared memory.
    pub(crate) fn inner_bytes(&self) -> u64 {
        match (self.interleave, self.mode) {
            (Interleave::None, MapMode::Tiled) => {
                u64::from(self.box_dims[0]) * u64::from(self.element.bytes())
            }
            (Interleave::None, MapMode::Im2col) => {
                u64::from(self.channels) * u64::from(self.element.bytes())
            }
            (slices, _) => slices.bytes().into(),
        }
    }

    /// What the driver's manual does not allow, if anything.
    pub(crate) fn fault(&self) -> Option<String> {
        let rank = self.rank as usize;
        let least = match (self.mode, self.interleave) {
            (MapMode::Tiled, Interleave::None) => 1,
            _ => 3,
        };
        if !(least..=MAX_RANK).contains(&rank) {
            return Some(format!("rank {rank} is not in {least} to {MAX_RANK}"));
        }
        let align = if self.interleave == Interleave::Slices32 {
            32
        } else {
            16
        };
        if !self.address.is_multiple_of(align) {
            let at = self.address;
            return Some(format!("global address {at:#x} is no multiple of {align}"));
        }
        for (n, dim) in self.dims[..rank].iter().enumerate() {
            if !(1..=1 << 32).contains(dim) {
                return Some(format!("dimension {n} of {dim} elements, not in 1 to 2^32"));
            }
        }
        for (n, stride) in self.strides[..rank - 1].iter().enumerate() {
            if !stride.is_multiple_of(align) || *stride >= 1 << 40 {
                let n = n + 1;
                return Some(format!(
                    "stride {stride} of dimension {n} is no multiple of {align} below 2^40"
                ));
            }
        }
        let inner = if self.interleave == Interleave::None {
            1
        } else {
            0
        };
        for (n, step) in self.steps[..rank].iter().enumerate().skip(inner) {
            if !(1..=8).contains(step) {
                return Some(format!(
                    "element stride {step} of dimension {n}, not in 1 to 8"
                ));
            }
        }
        let fault = match self.mode {
            MapMode::Tiled => self.box_fault(rank),
            MapMode::Im2col => self.pixel_fault(rank),
        };
        fault.or_else(|| self.pattern_fault())
    }

    fn box_fault(&self, rank: usize) -> Option<String> {
        for (n, size) in self.box_dims[..rank].iter().enumerate() {
            if !(1..=256).contains(size) {
                return Some(format!(
                    "box of {size} elements in dimension {n}, not 1 to 256"
                ));
            }
        }
        let inner = self.inner_bytes();
        (self.interleave == Interleave::None && !inner.is_multiple_of(16))
            .then(|| format!("a box's rows of {inner} bytes are no multiple of 16"))
    }

    fn pixel_fault(&self, rank: usize) -> Option<String> {
        let spatial = rank - 2;
        let bits = [15, 7, 4][spatial - 1];
        let range = -(1i32 << bits)..=(1i32 << bits) - 1;
        for (name, corner) in [("lower", &self.lower), ("upper", &self.upper)] {
            if let Some(n) = corner[..spatial].iter().find(|n| !range.contains(n)) {
                let (first, last) = (range.start(), range.end());
                return Some(format!("{name} corner {n} is not in {first} to {last}"));
            }
        }
        for n in 0..spatial {
            let (low, high) = (i64::from(self.lower[n]), i64::from(self.upper[n]));
            if self.dims[n + 1] as i64 + high - low <= 0 {
                return Some(format!("the box of pixels is empty in dimension {}", n + 1));
            }
        }
        if !(1..=256).contains(&self.channels) {
            return Some(format!("{} channels a pixel, not 1 to 256", self.channels));
        }
        if !(1..=1024).contains(&self.pixels) {
            return Some(format!("{} pixels a column, not 1 to 1024", self.pixels));
        }
        let inner = self.inner_bytes();
        (self.interleave == Interleave::None && !inner.is_multiple_of(16))
            .then(|| format!("a pixel's {inner} bytes are no multiple of 16"))
    }

    fn pattern_fault(&self) -> Option<String> {
        let (span, inner) = (u64::from(self.swizzle.span()), self.inner_bytes());
        if span != 0 && self.interleave == Interleave::None && inner > span {
            return Some(format!(
                "a box's rows of {inner} bytes exceed the swizzle of {span}"
            ));
        }
        (self.fills_nan && !self.element.is_float())
            .then(|| "a fill of NaN needs elements that are floats".to_owned())
    }

    /// Replaces a field as `tensormap.replace` does; `None` if the value stands for nothing.
    pub(crate) fn replace(&mut self, field: MapField, value: u64) -> Option<()> {
        let narrow = value as u32;
        match field {
            MapField::Address => self.address = value,
            MapField::Rank => self.rank = narrow.checked_add(1).filter(|n| *n <= 255)?,
            MapField::BoxDim(n) => *self.box_dims.get_mut(n)? = narrow.min(0xffff),
            MapField::GlobalDim(n) => *self.dims.get_mut(n)? = narrow.into(),
            MapField::GlobalStride(n) => *self.strides.get_mut(n)? = value & ((1 << 48) - 1),
            MapField::ElementStride(n) => *self.steps.get_mut(n)? = narrow.min(255),
            MapField::Element => self.element = MapElement::of_instruction(narrow)?,
            MapField::Interleave => self.interleave = Interleave::of(narrow)?,
            MapField::Swizzle => self.swizzle = self.swizzle.with_mode(narrow)?,
            MapField::Fill => self.fills_nan = narrow != 0,
        }
        Some(())
    }
}

/// A field that `tensormap.replace` names, with its ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapField {
    Address,
    Rank,
    BoxDim(usize),
    GlobalDim(usize),
    GlobalStride(usize),
    ElementStride(usize),
    Element,
    Interleave,
    Swizzle,
    Fill,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            mode: MapMode::Tiled,
            element: MapElement::Bf16,
            rank: 3,
            interleave: Interleave::None,
            swizzle: Swizzle::B128,
            fills_nan: true,
            address: 0x7f00_0000_1230,
            dims: [64, 1 << 32, 3, 1, 1],
            strides: [128, (1 << 40) - 16, 0, 0],
            box_dims: [64, 256, 1, 1, 1],
            steps: [1, 8, 1, 1, 1],
            lower: [-32768, 5, 0],
            upper: [32767, -5, 0],
            channels: 256,
            pixels: 1024,
        }
    }

    #[test]
    fn packing_keeps_every_field_and_another_magic_is_no_map() {
        let bytes = map().pack();
        assert_eq!(TensorMap::unpack(&bytes), Some(map()));
        assert_eq!(map().fault(), None);
        assert_eq!(TensorMap::unpack(&[0; TENSOR_MAP_BYTES]), None);
    }

    #[test]
    fn swizzles_are_those_of_the_tables_of_the_isa() {
        // Tables 5.5.7: the chunk of 16 bytes that each place of a line holds.
        let line = |s: Swizzle, row: u32| -> Vec<u32> {
            let mut held = vec![0; 8];
            for chunk in 0..8 {
                held[(s.apply(row * 128 + chunk * 16) % 128 / 16) as usize] = chunk;
            }
            held
        };
        assert_eq!(line(Swizzle::B32, 1), [1, 0, 3, 2, 5, 4, 7, 6]);
        assert_eq!(line(Swizzle::B32, 2), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(line(Swizzle::B64, 2), [2, 3, 0, 1, 6, 7, 4, 5]);
        assert_eq!(line(Swizzle::B64, 3), [3, 2, 1, 0, 7, 6, 5, 4]);
        assert_eq!(line(Swizzle::B128, 3), [3, 2, 1, 0, 7, 6, 5, 4]);
        assert_eq!(line(Swizzle::B128, 6), [6, 7, 4, 5, 2, 3, 0, 1]);
        assert_eq!(line(Swizzle::B128Atom32, 1), [2, 3, 0, 1, 6, 7, 4, 5]);
        assert_eq!(line(Swizzle::B128Atom32, 3), [6, 7, 4, 5, 2, 3, 0, 1]);
        assert_eq!(line(Swizzle::B128Atom64, 1), [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(Swizzle::B128Atom32Flip8.apply(128), 128 + 32 + 8);
    }

    #[test]
    fn a_map_says_which_rule_it_breaks() {
        let broken = |change: fn(&mut TensorMap)| {
            let mut m = map();
            change(&mut m);
            m.fault().unwrap_or_default()
        };
        assert!(broken(|m| m.address += 8).contains("multiple of 16"));
        assert!(broken(|m| m.strides[0] = 136).contains("stride 136 of dimension 1"));
        assert!(broken(|m| m.box_dims[1] = 257).contains("box of 257"));
        assert!(broken(|m| m.box_dims[0] = 65).contains("no multiple of 16"));
        assert!(broken(|m| m.box_dims[0] = 72).contains("exceed the swizzle of 128"));
        assert!(broken(|m| m.element = MapElement::U16).contains("NaN"));
        assert!(broken(|m| m.interleave = Interleave::Slices32).contains("multiple of 32"));
        assert!(broken(|m| m.rank = 6).contains("rank 6"));
    }
}
