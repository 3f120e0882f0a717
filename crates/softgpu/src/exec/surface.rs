//! Surface accesses: `suld`, `sust` and `sured`.

use std::sync::atomic::Ordering;

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::access::allow;
use super::binding::{ImageBinding, TexelImage};
use super::checks::{self, CheckedAccess, StoredValues};
use super::ctx::{Ctx, DecodedInst};
use super::image_lanes::{
    ImageGeometry, by_binding, by_checks, gather, handle, scatter, wrong_handle,
};
use super::lanes::Exec;
use super::lower::{Ext, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad};
use super::registers::{LANES, RowOperand, each};
use super::texel::TexelBits;
use super::width::{bits, is_signed};
use crate::check::Strength;
use crate::report::{AccessKind, FaultKind};

/// What becomes of an access outside the surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutsideRule {
    /// The kernel ends.
    Trap,
    /// The nearest place inside is accessed.
    Clamp,
    /// Reads are zero, writes are dropped.
    Zero,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reduction {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

const REDUCTIONS: [(Word, Reduction); 6] = [
    (Word::Add, Reduction::Add),
    (Word::Min, Reduction::Min),
    (Word::Max, Reduction::Max),
    (Word::And, Reduction::And),
    (Word::Or, Reduction::Or),
    (Word::Xor, Reduction::Xor),
];

/// The form of an access, kept in an instruction's `imm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SurfaceForm {
    geometry: ImageGeometry,
    outside: OutsideRule,
    /// Bytes of an element: 1, 2, 4 or 8.
    element: u32,
    /// Elements.
    count: u32,
    /// The first coordinate counts texels, and what is stored is converted to the format.
    is_formatted: bool,
    is_signed: bool,
    reduction: Reduction,
}

impl SurfaceForm {
    fn bits(self) -> u64 {
        let outside = match self.outside {
            OutsideRule::Trap => 0,
            OutsideRule::Clamp => 1,
            OutsideRule::Zero => 2,
        };
        let reduction = REDUCTIONS.iter().position(|r| r.1 == self.reduction);
        self.geometry.bits()
            | outside << 4
            | u64::from(self.is_formatted) << 6
            | u64::from(self.is_signed) << 7
            | u64::from(self.element) << 8
            | u64::from(self.count) << 12
            | (reduction.unwrap_or(0) as u64) << 16
    }

    fn from_bits(bits: u64) -> Self {
        SurfaceForm {
            geometry: ImageGeometry::from_bits(bits & 15),
            outside: match bits >> 4 & 3 {
                0 => OutsideRule::Trap,
                1 => OutsideRule::Clamp,
                _ => OutsideRule::Zero,
            },
            is_formatted: bits >> 6 & 1 != 0,
            is_signed: bits >> 7 & 1 != 0,
            element: bits as u32 >> 8 & 15,
            count: bits as u32 >> 12 & 15,
            reduction: REDUCTIONS[(bits >> 16) as usize % REDUCTIONS.len()].1,
        }
    }
}

// ---- lowering ---------------------------------------------------------------------------------

pub(super) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    matches!(i.op, Op::Suld | Op::Sust | Op::Sured).then(|| access(l, i, m))
}

fn form(m: &ModList<'_>, ty: Ty) -> Lowered<SurfaceForm> {
    let Some(geometry) = ImageGeometry::of(m).filter(|g| !g.is_cube) else {
        return Err(LowerError::Unsupported);
    };
    let reduction = REDUCTIONS.into_iter().find(|r| m.has(r.0));
    Ok(SurfaceForm {
        geometry,
        outside: match m.any(&[Word::Trap, Word::Clamp, Word::Zero]) {
            Some(Word::Clamp) => OutsideRule::Clamp,
            Some(Word::Zero) => OutsideRule::Zero,
            _ => OutsideRule::Trap,
        },
        element: bits(ty) / 8,
        count: match m.any(&[Word::V2, Word::V4]) {
            Some(Word::V2) => 2,
            Some(_) => 4,
            None => 1,
        },
        is_formatted: m.has(Word::P),
        is_signed: is_signed(ty),
        reduction: reduction.map_or(Reduction::Add, |r| r.1),
    })
}

fn access(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let form = form(m, ty)?;
    let (source, data) = match (i.op, i.operands.as_slice()) {
        (Op::Suld, [data, source]) | (_, [source, data]) => (source, data),
        _ => return bad("expected a surface and data"),
    };
    let Ast::Bracket(source) = source else {
        return bad("expected a surface");
    };
    let [surface, at] = source.as_slice() else {
        return bad("expected a surface and coordinates");
    };
    let data = match data {
        Ast::Vector(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let bytes = form.element * form.count;
    if data.len() != form.count as usize || !(1..=16).contains(&bytes) {
        return bad("data of the wrong length");
    }
    let (mut ext, mut widened) = (Vec::new(), Vec::new());
    let is_guarded = l.guard != PredRef::True;
    for item in data {
        ext.push(Ext::Row(if i.op == Op::Suld {
            let (d, wide) = l.dst_wide(item, ty)?;
            widened.push(wide);
            match d {
                Opd::Def(v) if is_guarded => Opd::Both(v),
                d => d,
            }
        } else {
            l.src(item, ty)?
        }));
    }
    let (layer, coordinates) = form.geometry.split(at)?;
    for item in coordinates.iter().chain(layer) {
        ext.push(Ext::Row(l.src(item, Ty::B32)?));
    }
    let surface = handle(l, surface)?;
    let checks = l.k.checks;
    let h = match i.op {
        Op::Suld => by_checks::<SurfaceLoad<false>, SurfaceLoad<true>>(checks),
        Op::Sust => by_checks::<SurfaceStore<false>, SurfaceStore<true>>(checks),
        _ => {
            l.k.communicates = true;
            by_checks::<SurfaceReduction<false>, SurfaceReduction<true>>(checks)
        }
    };
    let x = l.emit(h, Opd::None, surface, Opd::None, Opd::None);
    x.imm = form.bits();
    x.ext = ext;
    for wide in widened {
        l.finish(wide, false);
    }
    Ok(())
}

// ---- execution --------------------------------------------------------------------------------

/// Calls `f` with each surface that lanes access, their addresses, and the lanes whose access is
/// inside.
fn by_surface<'l>(
    ctx: &mut Ctx<'l>,
    i: &DecodedInst,
    form: SurfaceForm,
    kind: AccessKind,
    mut f: impl FnMut(&mut Ctx<'l>, &TexelImage, &[u64; LANES], u32, u32),
) {
    by_binding(ctx, i, i.a, |ctx, binding, mask| match binding {
        ImageBinding::Surface(image) => {
            let size = match form.is_formatted {
                true => image.format.bytes(),
                false => form.element * form.count,
            };
            let mut addr = [0; LANES];
            let mut inside = 0;
            each(mask, |l| match place(ctx, i, form, image, size, l) {
                Ok(at) => {
                    addr[l] = at;
                    inside |= 1 << l;
                }
                Err(why) if form.outside == OutsideRule::Trap => {
                    let access = match kind {
                        AccessKind::Read => "read",
                        AccessKind::Write => "write",
                        _ => "reduction",
                    };
                    let why = format!("a {access} of {size} bytes at {why}");
                    let at = image.levels[0].at;
                    ctx.outside_surface(i, l as u32, FaultKind::OutsideSurface(why), at);
                }
                Err(_) => {}
            });
            f(ctx, image, &addr, inside, mask & !inside);
        }
        ImageBinding::Unbound => {
            each(mask, |l| give_zero(ctx, i, form, kind, l));
        }
        ImageBinding::Texture(..) | ImageBinding::Sampler(_) => {
            let lane = mask.trailing_zeros() as usize;
            let handle = ctx.rows.lane::<u64>(i.a, lane);
            wrong_handle(ctx, i, lane, handle, "a surface");
        }
    });
}

/// The address that a lane accesses, or how far outside it is.
fn place(
    ctx: &Ctx<'_>,
    i: &DecodedInst,
    form: SurfaceForm,
    image: &TexelImage,
    size: u32,
    lane: usize,
) -> Result<u64, String> {
    let word = |n: u32| -> i64 {
        let row = RowOperand::from_bits(ctx.code.ext[(i.x + form.count + n) as usize]);
        i64::from(ctx.rows.lane::<u32>(row, lane) as i32)
    };
    let level = &image.levels[0];
    let dims = form.geometry.coordinates;
    let texel = i64::from(image.format.bytes());
    let unit = if form.is_formatted { texel } else { 1 };
    let bound = |at: i64, last: i64| match form.outside {
        OutsideRule::Clamp => Some(at.clamp(0, last.max(0))),
        _ => (0..=last).contains(&at).then_some(at),
    };
    let row = i64::from(level.extent[0]) * texel;
    let (x, last) = (word(0) * unit, row - i64::from(size));
    let at = |n: u32| if n < dims { word(n) } else { 0 };
    let layer = match form.geometry.is_layered {
        true => word(dims),
        false => 0,
    };
    let [_, height, depth] = level.extent.map(i64::from);
    let found = (
        bound(x, last),
        bound(at(1), height - 1),
        bound(at(2), depth - 1),
        bound(layer, i64::from(image.layers.max(1)) - 1),
    );
    let (Some(x), Some(y), Some(z), Some(layer)) = found else {
        let mut why = format!("byte {x} of {row}");
        for (name, n, size) in [("row", 1, height), ("slice", 2, depth)] {
            if n < dims {
                why += &format!(", {name} {} of {size}", at(n));
            }
        }
        if form.geometry.is_layered {
            why += &format!(", layer {layer} of {}", image.layers);
        }
        return Err(why);
    };
    let x = match form.outside {
        OutsideRule::Clamp => x - x % i64::from(size),
        _ => x,
    };
    Ok(level.at + x as u64 + y as u64 * level.pitch + (z + layer) as u64 * level.slice)
}

/// The rows of the elements that are loaded or stored.
fn data<'a>(ctx: &Ctx<'a>, i: &DecodedInst, form: SurfaceForm) -> &'a [u32] {
    &ctx.code.ext[i.x as usize..][..form.count as usize]
}

fn set_element(ctx: &mut Ctx<'_>, d: u32, form: SurfaceForm, lane: usize, value: u64) {
    let d = RowOperand::from_bits(d);
    if form.element == 8 {
        ctx.rows.set_lane::<u64>(d, lane, value);
    } else {
        ctx.rows.set_lane::<u32>(d, lane, value as u32);
    }
}

fn element(ctx: &Ctx<'_>, d: u32, form: SurfaceForm, lane: usize) -> u64 {
    let d = RowOperand::from_bits(d);
    if form.element == 8 {
        ctx.rows.lane::<u64>(d, lane)
    } else {
        u64::from(ctx.rows.lane::<u32>(d, lane))
    }
}

fn give_zero(ctx: &mut Ctx<'_>, i: &DecodedInst, form: SurfaceForm, kind: AccessKind, lane: usize) {
    if kind == AccessKind::Read {
        for &d in data(ctx, i, form) {
            set_element(ctx, d, form, lane, 0);
        }
    }
}

struct SurfaceLoad<const CHECK: bool>;

impl<const CHECK: bool> Exec for SurfaceLoad<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let form = SurfaceForm::from_bits(i.imm);
        let kind = AccessKind::Read;
        by_surface(ctx, i, form, kind, |ctx, _, addr, inside, outside| {
            let access = CheckedAccess::plain(form.element * form.count, kind);
            let texels = gather::<CHECK>(ctx, i, addr, inside, access);
            each(inside, |l| {
                let bits = 8 * form.element;
                for (&d, k) in data(ctx, i, form).iter().zip(0..) {
                    let at = bits * k;
                    let word = texels[l][(at / 64) as usize & 1] >> (at % 64);
                    set_element(ctx, d, form, l, word & (u64::MAX >> (64 - bits)));
                }
            });
            each(outside, |l| give_zero(ctx, i, form, kind, l));
        });
    }
}

struct SurfaceStore<const CHECK: bool>;

impl<const CHECK: bool> Exec for SurfaceStore<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let form = SurfaceForm::from_bits(i.imm);
        let kind = AccessKind::Write;
        by_surface(ctx, i, form, kind, |ctx, image, addr, inside, _| {
            let mut texels = [[0; 2]; LANES];
            let mut access = CheckedAccess::plain(form.element * form.count, kind);
            let parts = data(ctx, i, form);
            if form.is_formatted {
                access.size = image.format.bytes();
                each(inside, |l| {
                    let mut values = [0; 4];
                    for (value, &d) in values.iter_mut().zip(parts) {
                        *value = element(ctx, d, form, l) as u32;
                    }
                    texels[l] = image.format.pack(values);
                });
            } else {
                let size = form.element as usize;
                access.values = Some(StoredValues {
                    parts,
                    element: size,
                });
                each(inside, |l| texels[l] = joined(ctx, form, parts, l));
            }
            scatter::<CHECK>(ctx, i, addr, inside, access, &texels);
        });
    }
}

/// A lane's elements one behind the other.
fn joined(ctx: &Ctx<'_>, form: SurfaceForm, parts: &[u32], lane: usize) -> TexelBits {
    let bits = 8 * form.element as usize;
    let mut out = [0; 2];
    for (k, &d) in parts.iter().enumerate() {
        let value = element(ctx, d, form, lane) & (u64::MAX >> (64 - bits));
        out[k * bits / 64] |= value << (k * bits % 64);
    }
    out
}

struct SurfaceReduction<const CHECK: bool>;

impl<const CHECK: bool> Exec for SurfaceReduction<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let form = SurfaceForm::from_bits(i.imm);
        let kind = AccessKind::Atomic;
        ctx.waits += 1;
        by_surface(ctx, i, form, kind, |ctx, image, addr, inside, _| {
            let form = match form.is_formatted {
                true => SurfaceForm {
                    element: image.format.bytes().clamp(4, 8),
                    ..form
                },
                false => form,
            };
            let access = CheckedAccess {
                strength: Strength::Strong,
                ..CheckedAccess::plain(form.element, kind)
            };
            let mask = match CHECK {
                true => checks::global(ctx, i, addr, inside, access),
                false => inside,
            };
            let source = data(ctx, i, form)[0];
            each(mask, |l| {
                let size = u64::from(form.element);
                if allow(ctx, i, l, addr[l], size, kind) {
                    let value = element(ctx, source, form, l);
                    reduce(ctx, form, addr[l], value);
                }
            });
        });
    }
}

/// Changes the memory at an address that the write window holds.
fn reduce(ctx: &Ctx<'_>, form: SurfaceForm, at: u64, value: u64) {
    let window = ctx.write_window;
    let apply = |old: u64| {
        let signed = |x: u64| match form.element {
            8 => x as i64,
            _ => i64::from(x as u32 as i32),
        };
        let is_less = match form.is_signed {
            true => signed(old) < signed(value),
            false => old < value,
        };
        match form.reduction {
            Reduction::Add => old.wrapping_add(value),
            Reduction::Min if is_less => old,
            Reduction::Max if !is_less => old,
            Reduction::Min | Reduction::Max => value,
            Reduction::And => old & value,
            Reduction::Or => old | value,
            Reduction::Xor => old ^ value,
        }
    };
    let order = Ordering::SeqCst;
    // The closures always give a value, so the updates do not fail.
    if form.element == 8 {
        window
            .atomic64(at)
            .fetch_update(order, order, |old| Some(apply(old)))
            .ok();
    } else {
        window
            .atomic32(at)
            .fetch_update(order, order, |old| Some(apply(u64::from(old)) as u32))
            .ok();
    }
}
