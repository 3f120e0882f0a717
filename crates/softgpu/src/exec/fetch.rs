//! Texture fetches: `tex` and `tld4`, and `txq`.
//!
//! Elsewhere: which texels a fetch reads ([`super::sampling`]), what a handle stands for
//! ([`super::binding`]).

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::binding::{ImageBinding, Sampler, TexelImage};
use super::checks::CheckedAccess;
use super::ctx::{Ctx, DecodedInst};
use super::halves::f32_to_f16;
use super::image_lanes::{
    ImageGeometry, bound, by_binding, by_checks, gather, handle, wrong_handle,
};
use super::lanes::{Exec, handlers_plain};
use super::lower::{Ext, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad};
use super::registers::{ALL, LANES, PredOperand, RowOperand, each};
use super::sampling::{
    FetchPlace, FetchPoint, Footprint, LevelChoice, MAX_TAPS, cube_face, footprint, gathered,
};
use super::texel::{ComponentType, TexelBits, linear_of_srgb};
use crate::check::Strength;
use crate::report::AccessKind;

/// The form of a fetch, kept in an instruction's `imm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FetchForm {
    geometry: ImageGeometry,
    /// Coordinates are integers.
    is_counted: bool,
    level: LevelForm,
    has_offset: bool,
    /// The component that `tld4` takes of four texels.
    gathers: Option<u32>,
    /// Two destinations of two halves each.
    gives_halves: bool,
    /// Destinations of a half.
    gives_half: bool,
    /// The sampler has a handle of its own.
    has_sampler: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelForm {
    Zero,
    Base,
    Given,
    Gradient,
}

impl FetchForm {
    fn bits(self) -> u64 {
        let level = match self.level {
            LevelForm::Zero => 0,
            LevelForm::Base => 1,
            LevelForm::Given => 2,
            LevelForm::Gradient => 3,
        };
        self.geometry.bits()
            | u64::from(self.is_counted) << 4
            | level << 5
            | u64::from(self.has_offset) << 7
            | u64::from(self.gathers.map_or(0, |c| c + 1)) << 8
            | u64::from(self.gives_halves) << 11
            | u64::from(self.has_sampler) << 12
            | u64::from(self.gives_half) << 13
    }

    fn from_bits(bits: u64) -> Self {
        FetchForm {
            geometry: ImageGeometry::from_bits(bits & 15),
            is_counted: bits >> 4 & 1 != 0,
            level: match bits >> 5 & 3 {
                0 => LevelForm::Zero,
                1 => LevelForm::Base,
                2 => LevelForm::Given,
                _ => LevelForm::Gradient,
            },
            has_offset: bits >> 7 & 1 != 0,
            gathers: (bits >> 8 & 7).checked_sub(1).map(|c| c as u32),
            gives_halves: bits >> 11 & 1 != 0,
            has_sampler: bits >> 12 & 1 != 0,
            gives_half: bits >> 13 & 1 != 0,
        }
    }

    fn results(self) -> usize {
        if self.gives_halves { 2 } else { 4 }
    }
}

// ---- lowering ---------------------------------------------------------------------------------

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Tex | Op::Tld4 => fetch(l, i, m),
        Op::Txq | Op::Suq => query(l, i, m),
        Op::Istypep => type_test(l, i, m),
        _ => return super::surface::lower(l, i, m),
    })
}

/// Registers of a result, written in some lanes only if the instruction is guarded.
fn results(l: &mut Lower<'_, '_>, o: &Ast, n: usize) -> Lowered<Vec<Ext>> {
    let Ast::Vector(items) = o else {
        return bad("a vector is needed for the result");
    };
    if items.len() != n {
        return bad("a vector of the wrong length");
    }
    let is_guarded = l.guard != PredRef::True;
    let mut out = Vec::new();
    for item in items {
        out.push(Ext::Row(match l.dst(item, Ty::B32)? {
            Opd::Def(v) if is_guarded => Opd::Both(v),
            d => d,
        }));
    }
    Ok(out)
}

fn rows_of(
    l: &mut Lower<'_, '_>,
    items: &[Ast],
    ty: Ty,
    n: usize,
    ext: &mut Vec<Ext>,
) -> Lowered<()> {
    let Some(items) = items.get(..n) else {
        return bad("too few elements");
    };
    for item in items {
        ext.push(Ext::Row(l.src(item, ty)?));
    }
    Ok(())
}

fn elements(o: &Ast) -> &[Ast] {
    match o {
        Ast::Vector(items) => items,
        one => std::slice::from_ref(one),
    }
}

fn fetch(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let Some(geometry) = ImageGeometry::of(m) else {
        return Err(LowerError::Unsupported);
    };
    let (result_type, coordinate_type) = (m.ty(0)?, m.ty(1)?);
    let [result, Ast::Bracket(source), rest @ ..] = i.operands.as_slice() else {
        return bad("expected a result and a texture");
    };
    let (result, resident) = match result {
        Ast::Pair(result, p) => (&**result, Some(&**p)),
        result => (result, None),
    };
    let (texture, sampler, at) = match source.as_slice() {
        [texture, at] => (texture, None, at),
        [texture, sampler, at] => (texture, Some(sampler), at),
        _ => return bad("a texture, perhaps a sampler, and coordinates"),
    };
    let (level, mut rest) = match m.any(&[Word::Base, Word::Level, Word::Grad]) {
        Some(Word::Base) => (LevelForm::Base, rest),
        Some(Word::Level) => (LevelForm::Given, rest),
        Some(_) => (LevelForm::Gradient, rest),
        None => (LevelForm::Zero, rest),
    };
    let channels = [Word::R, Word::G, Word::B, Word::A];
    let gathers =
        (i.op == Op::Tld4).then(|| channels.iter().position(|&w| m.has(w)).unwrap_or(0) as u32);
    let mut form = FetchForm {
        geometry,
        is_counted: coordinate_type == Ty::S32,
        level,
        has_offset: false,
        gathers,
        gives_halves: result_type == Ty::F16x2,
        gives_half: result_type == Ty::F16,
        has_sampler: sampler.is_some(),
    };
    let mut ext = results(l, result, form.results())?;
    let (layer, coordinates) = geometry.split(at)?;
    let number = if form.is_counted { Ty::B32 } else { Ty::F32 };
    rows_of(
        l,
        coordinates,
        number,
        geometry.coordinates as usize,
        &mut ext,
    )?;
    if let Some(layer) = layer {
        ext.push(Ext::Row(l.src(layer, Ty::B32)?));
    }
    let changes = geometry.coordinates as usize;
    rest = match (level, rest) {
        (LevelForm::Given, [level, rest @ ..]) => {
            ext.push(Ext::Row(l.src(level, Ty::F32)?));
            rest
        }
        (LevelForm::Gradient, [dx, dy, rest @ ..]) => {
            rows_of(l, elements(dx), Ty::F32, changes, &mut ext)?;
            rows_of(l, elements(dy), Ty::F32, changes, &mut ext)?;
            rest
        }
        (LevelForm::Given | LevelForm::Gradient, _) => return bad("a level is missing"),
        (_, rest) => rest,
    };
    match rest {
        [] => {}
        // A depth to compare with would be a single float.
        [offset @ Ast::Vector(_)] => {
            form.has_offset = true;
            rows_of(l, elements(offset), Ty::B32, geometry.dims(), &mut ext)?;
        }
        _ => return Err(LowerError::Unsupported),
    }
    let texture = handle(l, texture)?;
    let sampler = match sampler {
        Some(sampler) => handle(l, sampler)?,
        None => Opd::None,
    };
    let h = by_checks::<Fetch<false>, Fetch<true>>(l.k.checks);
    let x = l.emit(h, Opd::None, texture, sampler, Opd::None);
    x.imm = form.bits();
    x.ext = ext;
    if let Some(p) = resident {
        // All of memory is resident.
        let p = l.pred_dst(p)?;
        super::basics::logic(l, Op::And, p, PredRef::True, PredRef::True);
    }
    Ok(())
}

// ---- execution --------------------------------------------------------------------------------

struct Fetch<const CHECK: bool>;

impl<const CHECK: bool> Exec for Fetch<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let form = FetchForm::from_bits(i.imm);
        by_binding(ctx, i, i.a, |ctx, binding, mask| {
            if form.has_sampler {
                by_sampler::<CHECK>(ctx, i, form, binding, mask);
                return;
            }
            match binding {
                ImageBinding::Texture(image, sampler) => {
                    fetch_lanes::<CHECK>(ctx, i, form, image, sampler, mask);
                }
                ImageBinding::Unbound => give_zeros(ctx, i, form, mask),
                ImageBinding::Surface(_) | ImageBinding::Sampler(_) => no_texture(ctx, i, mask),
            }
        });
    }
}

#[cold]
fn no_texture(ctx: &mut Ctx<'_>, i: &DecodedInst, mask: u32) {
    let lane = mask.trailing_zeros() as usize;
    let handle = ctx.rows.lane::<u64>(i.a, lane);
    wrong_handle(ctx, i, lane, handle, "a texture");
}

/// Fetches by samplers with handles of their own, which may differ from lane to lane.
fn by_sampler<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    form: FetchForm,
    texture: &ImageBinding,
    mask: u32,
) {
    let Some(image) = texture.image() else {
        return give_zeros(ctx, i, form, mask);
    };
    let handles = ctx.rows.row::<u64>(i.b);
    let mut left = mask;
    while left != 0 {
        let first = left.trailing_zeros() as usize;
        let mut same = 0;
        each(left, |l| {
            same |= u32::from(handles[l] == handles[first]) << l
        });
        left &= !same;
        let Some(binding) = bound(ctx, i, first, handles[first]) else {
            continue;
        };
        match binding.sampler() {
            Some(sampler) => fetch_lanes::<CHECK>(ctx, i, form, image, sampler, same),
            None => wrong_handle(ctx, i, first, handles[first], "a sampler"),
        }
    }
}

fn give_zeros(ctx: &mut Ctx<'_>, i: &DecodedInst, form: FetchForm, mask: u32) {
    for k in 0..form.results() {
        let d = RowOperand::from_bits(ctx.code.ext[i.x as usize + k]);
        each(mask, |l| ctx.rows.set_lane::<u32>(d, l, 0));
    }
}

/// Where the lanes' operands are.
struct FetchOperands {
    coordinates: usize,
    layer: usize,
    level: usize,
    offset: usize,
}

impl FetchOperands {
    fn new(form: FetchForm) -> Self {
        let n = form.geometry.coordinates as usize;
        let coordinates = form.results();
        let layer = coordinates + n;
        let level = layer + usize::from(form.geometry.is_layered);
        let offset = level
            + match form.level {
                LevelForm::Given => 1,
                LevelForm::Gradient => 2 * n,
                LevelForm::Zero | LevelForm::Base => 0,
            };
        FetchOperands {
            coordinates,
            layer,
            level,
            offset,
        }
    }
}

/// The place that a lane fetches from.
fn place_of(
    ctx: &Ctx<'_>,
    i: &DecodedInst,
    form: FetchForm,
    image: &TexelImage,
    lane: usize,
) -> FetchPlace {
    let operands = FetchOperands::new(form);
    let word = |n: usize| -> u32 {
        let row = RowOperand::from_bits(ctx.code.ext[i.x as usize + n]);
        ctx.rows.lane::<u32>(row, lane)
    };
    let count = form.geometry.coordinates as usize;
    let vector = |from: usize| -> [u32; 3] {
        std::array::from_fn(|n| if n < count { word(from + n) } else { 0 })
    };
    let given = vector(operands.coordinates);
    let (face, point) = if form.geometry.is_cube {
        let (face, [s, t]) = cube_face(given.map(f32::from_bits));
        (face, FetchPoint::Number([s, t, 0.0]))
    } else if form.is_counted {
        (0, FetchPoint::Texel(given.map(|c| c as i32)))
    } else {
        (0, FetchPoint::Number(given.map(f32::from_bits)))
    };
    let faces = if form.geometry.is_cube { 6 } else { 1 };
    let last = (image.layers / faces).max(1) - 1;
    let layer = if form.geometry.is_layered {
        (word(operands.layer) as i32).clamp(0, last as i32) as u32
    } else {
        0
    };
    let level = match form.level {
        LevelForm::Zero => LevelChoice::Level(0.0),
        LevelForm::Base => LevelChoice::Base,
        LevelForm::Given => LevelChoice::Level(f32::from_bits(word(operands.level))),
        LevelForm::Gradient => LevelChoice::Gradient(
            [operands.level, operands.level + count].map(|from| vector(from).map(f32::from_bits)),
        ),
    };
    let dims = form.geometry.dims();
    let moved = |n: usize| match form.has_offset && n < dims {
        true => word(operands.offset + n) as i32,
        false => 0,
    };
    FetchPlace {
        point,
        offset: std::array::from_fn(moved),
        layer: (layer * faces + face).min(image.layers.max(1) - 1),
        level,
    }
}

/// How components become results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The bits of integers.
    Integers,
    /// Numbers, of which several may be added.
    Numbers,
    /// Numbers of which the first three of a texel are converted from sRGB.
    Srgb,
}

impl Reading {
    fn of(image: &TexelImage, sampler: &Sampler) -> Reading {
        let format = image.format;
        let fractions =
            format.fraction || sampler.reads_fractions && format.component.is_narrow_integer();
        match (format.component, fractions) {
            (ComponentType::U8, true) if sampler.is_srgb => Reading::Srgb,
            (_, true) | (ComponentType::F16 | ComponentType::F32, _) => Reading::Numbers,
            _ => Reading::Integers,
        }
    }
}

fn fetch_lanes<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    form: FetchForm,
    image: &TexelImage,
    sampler: &Sampler,
    mask: u32,
) {
    let reading = Reading::of(image, sampler);
    let sampler = Sampler {
        is_linear: sampler.is_linear && reading != Reading::Integers && form.gathers.is_none(),
        is_linear_in_levels: sampler.is_linear_in_levels && reading != Reading::Integers,
        border: match image.is_buffer {
            true => [0.0; 4],
            false => sampler.border,
        },
        ..*sampler
    };
    let mut footprints: Vec<Option<Footprint>> = vec![None; LANES];
    each(mask, |l| {
        let place = place_of(ctx, i, form, image, l);
        footprints[l] = Some(match form.gathers {
            Some(_) => gathered(image, &sampler, &place),
            None => footprint(image, &sampler, form.geometry.dims(), &place),
        });
    });
    let mut sums = [FetchSum::default(); LANES];
    for n in 0..MAX_TAPS {
        let (mut addr, mut here, mut outside) = ([0; LANES], 0, 0);
        let mut weights = [0.0; LANES];
        each(mask, |l| {
            let taps = footprints[l].as_ref().map_or(&[][..], Footprint::taps);
            let Some(tap) = taps.get(n) else { return };
            weights[l] = tap.weight;
            match tap.at {
                Some(at) => {
                    addr[l] = at;
                    here |= 1 << l;
                }
                None => outside |= 1 << l,
            }
        });
        if here | outside == 0 {
            break;
        }
        let access = CheckedAccess {
            strength: Strength::Texture,
            ..CheckedAccess::plain(image.format.bytes(), AccessKind::Read)
        };
        let texels = match here {
            0 => [[0; 2]; LANES],
            here => gather::<CHECK>(ctx, i, &addr, here, access),
        };
        each(here | outside, |l| {
            let texel = (outside >> l & 1 == 0).then_some(texels[l]);
            sums[l].add(n, form, image, &sampler, reading, texel, weights[l]);
        });
    }
    let rows: [RowOperand; 4] = std::array::from_fn(|k| match k < form.results() {
        true => RowOperand::from_bits(ctx.code.ext[i.x as usize + k]),
        false => RowOperand::default(),
    });
    each(mask, |l| {
        let values = sums[l].finish(reading);
        let half = |k: usize| u32::from(f32_to_f16(f32::from_bits(values[k])));
        if form.gives_half {
            for (k, row) in rows.into_iter().enumerate() {
                ctx.rows.set_lane::<u32>(row, l, half(k));
            }
        } else if form.gives_halves {
            for (k, row) in rows.into_iter().take(2).enumerate() {
                ctx.rows
                    .set_lane::<u32>(row, l, half(2 * k) | half(2 * k + 1) << 16);
            }
        } else {
            for (row, value) in rows.into_iter().zip(values) {
                ctx.rows.set_lane::<u32>(row, l, value);
            }
        }
    });
}

/// The result of a fetch while its texels are added.
#[derive(Debug, Clone, Copy, Default)]
struct FetchSum {
    /// Of integers, and of a single texel of floats, whose bits are kept.
    bits: [u32; 4],
    numbers: [f64; 4],
    keeps_bits: bool,
}

impl FetchSum {
    /// Adds the texel of a tap, or the border.
    #[expect(clippy::too_many_arguments, reason = "a texel and how it is read")]
    fn add(
        &mut self,
        n: usize,
        form: FetchForm,
        image: &TexelImage,
        sampler: &Sampler,
        reading: Reading,
        texel: Option<TexelBits>,
        weight: f64,
    ) {
        let format = image.format;
        let number = |k: u32| match texel {
            _ if k >= format.channels => f64::from(u32::from(k == 3)),
            None => f64::from(sampler.border[k as usize]),
            Some(texel) if reading == Reading::Srgb && k < 3 => {
                linear_of_srgb(format.number(texel, k))
            }
            Some(texel) => format.number(texel, k),
        };
        let bits = |k: u32| match (texel, reading) {
            (Some(texel), Reading::Integers) if k < format.channels => format.bits(texel, k),
            (_, Reading::Integers) => number(k) as i64 as u32,
            (Some(texel), _) if k < format.channels && format.component == ComponentType::F32 => {
                format.bits(texel, k)
            }
            _ => (number(k) as f32).to_bits(),
        };
        if let Some(component) = form.gathers {
            self.keeps_bits = true;
            self.bits[n & 3] = bits(component);
            return;
        }
        self.keeps_bits = n == 0 && weight == 1.0;
        if self.keeps_bits || reading == Reading::Integers {
            self.bits = [0, 1, 2, 3].map(bits);
        }
        for (k, sum) in self.numbers.iter_mut().enumerate() {
            *sum += weight * number(k as u32);
        }
    }

    fn finish(self, reading: Reading) -> [u32; 4] {
        match self.keeps_bits || reading == Reading::Integers {
            true => self.bits,
            false => self.numbers.map(|n| (n as f32).to_bits()),
        }
    }
}

// ---- queries ----------------------------------------------------------------------------------

/// What `txq` and `suq` ask for.
const QUERIES: [Word; 14] = [
    Word::Width,
    Word::Height,
    Word::Depth,
    Word::ChannelDataType,
    Word::ChannelOrder,
    Word::ArraySize,
    Word::NumMipmapLevels,
    Word::NumSamples,
    Word::NormalizedCoords,
    Word::ForceUnnormalizedCoords,
    Word::FilterMode,
    Word::AddrMode0,
    Word::AddrMode1,
    Word::AddrMode2,
];

fn query(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let Some(which) = QUERIES.iter().position(|&w| m.has(w)) else {
        return Err(LowerError::Unsupported);
    };
    let [result, source, rest @ ..] = i.operands.as_slice() else {
        return bad("expected a result and a texture");
    };
    let d = l.dst(result, Ty::B32)?;
    let level = match rest {
        [level] => l.src(level, Ty::B32)?,
        _ => l.c32(0),
    };
    let a = handle(l, source)?;
    l.emit(handlers_plain::<Query>(), d, a, level, Opd::None)
        .imm = which as u64;
    Ok(())
}

struct Query;

impl Exec for Query {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        by_binding(ctx, i, i.a, |ctx, binding, mask| {
            each(mask, |l| {
                let level = ctx.rows.lane::<u32>(i.b, l) as usize;
                let value = answer(binding, QUERIES[i.imm as usize % QUERIES.len()], level);
                ctx.rows.set_lane::<u32>(i.d, l, value);
            });
        });
    }
}

/// The answer to a query; 0 of what the handle does not have.
fn answer(binding: &ImageBinding, which: Word, level: usize) -> u32 {
    let of_image = |f: &dyn Fn(&TexelImage) -> u32| binding.image().map_or(0, f);
    let of_sampler = |f: &dyn Fn(&Sampler) -> u32| binding.sampler().map_or(0, f);
    let extent =
        |n: usize| of_image(&|image| image.levels.get(level).map_or(0, |level| level.extent[n]));
    match which {
        Word::Width => extent(0),
        Word::Height => extent(1),
        Word::Depth => extent(2),
        // The numbers are those of OpenCL.
        Word::ChannelDataType => of_image(&|image| match image.format.component {
            ComponentType::S8 if image.format.fraction => 0x10d0,
            ComponentType::S16 if image.format.fraction => 0x10d1,
            ComponentType::U8 if image.format.fraction => 0x10d2,
            ComponentType::U16 if image.format.fraction => 0x10d3,
            ComponentType::S8 => 0x10d7,
            ComponentType::S16 => 0x10d8,
            ComponentType::S32 => 0x10d9,
            ComponentType::U8 => 0x10da,
            ComponentType::U16 => 0x10db,
            ComponentType::U32 => 0x10dc,
            ComponentType::F16 => 0x10dd,
            ComponentType::F32 => 0x10de,
        }),
        Word::ChannelOrder => of_image(&|image| match image.format.channels {
            1 => 0x10b0,
            2 => 0x10b2,
            _ => 0x10b5,
        }),
        Word::ArraySize => of_image(&|image| image.layers),
        Word::NumMipmapLevels => of_image(&|image| image.levels.len() as u32),
        Word::NumSamples => of_image(&|_| 1),
        Word::NormalizedCoords => of_sampler(&|s| u32::from(s.is_normalised)),
        Word::ForceUnnormalizedCoords => of_sampler(&|s| u32::from(!s.is_normalised)),
        Word::FilterMode => of_sampler(&|s| u32::from(s.is_linear)),
        Word::AddrMode0 => of_sampler(&|s| s.address[0] as u32),
        Word::AddrMode1 => of_sampler(&|s| s.address[1] as u32),
        _ => of_sampler(&|s| s.address[2] as u32),
    }
}

fn type_test(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let [result, source] = i.operands.as_slice() else {
        return bad("expected a predicate and a handle");
    };
    let kind = match m.ty(0)? {
        Ty::Texref => 0,
        Ty::Samplerref => 1,
        Ty::Surfref => 2,
        _ => return bad("a type of no handle"),
    };
    let p = l.pred_dst(result)?;
    let a = handle(l, source)?;
    let x = l.emit(
        handlers_plain::<TypeTest>(),
        Opd::None,
        a,
        Opd::None,
        Opd::None,
    );
    x.x = kind;
    x.imm_lo = Some(p);
    Ok(())
}

struct TypeTest;

impl Exec for TypeTest {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let handles = ctx.rows.row::<u64>(i.a);
        let mut found = 0;
        each(ctx.mask, |l| {
            let binding = ctx.run.spec.bindings.find(handles[l]);
            let is_so = matches!(
                (i.x, binding.as_deref()),
                (0, Some(ImageBinding::Texture(..)))
                    | (1, Some(ImageBinding::Sampler(_)))
                    | (2, Some(ImageBinding::Surface(_)))
            );
            found |= u32::from(is_so) << l;
        });
        let mask = if FULL { ALL } else { ctx.mask };
        ctx.rows
            .set_pred(PredOperand::from_bits(i.imm as u32), found, mask);
    }
}
