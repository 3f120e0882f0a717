//! Lanes of a warp that use one image: finding it, and reading and writing its texels.

use std::sync::Arc;

use super::access::by_window;
use super::binding::ImageBinding;
use super::checks::CheckedAccess;
use super::ctx::{Ctx, DecodedInst};
use super::fixed_rows::load_parameter64;
use super::lanes::{Exec, Handlers, handlers_plain};
use super::registers::{LANES, RowOperand, each};
use super::texel::TexelBits;
use crate::mem::Window;
use crate::report::FaultKind;

use fercuda_ptx::ast::{AddrBase, Operand as Ast};
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::lower::{Entity, Lower, Lowered, ModList, Opd, bad};

/// How the coordinates of an image are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageGeometry {
    /// Coordinates of a texel, of a cube its direction's.
    pub(super) coordinates: u32,
    pub(super) is_layered: bool,
    pub(super) is_cube: bool,
}

impl ImageGeometry {
    pub(super) fn of(m: &ModList<'_>) -> Option<ImageGeometry> {
        let words = [
            (Word::N1d, 1, false, false),
            (Word::N2d, 2, false, false),
            (Word::N3d, 3, false, false),
            (Word::A1d, 1, true, false),
            (Word::A2d, 2, true, false),
            (Word::Cube, 3, false, true),
            (Word::Acube, 3, true, true),
        ];
        let found = words.into_iter().find(|w| m.has(w.0));
        found.map(|(_, coordinates, is_layered, is_cube)| ImageGeometry {
            coordinates,
            is_layered,
            is_cube,
        })
    }

    /// Dimensions of the image, or of one of its layers.
    pub(super) fn dims(self) -> usize {
        match self.is_cube {
            true => 2,
            false => self.coordinates as usize,
        }
    }

    pub(super) fn bits(self) -> u64 {
        u64::from(self.coordinates) | u64::from(self.is_layered) << 2 | u64::from(self.is_cube) << 3
    }

    pub(super) fn from_bits(bits: u64) -> ImageGeometry {
        ImageGeometry {
            coordinates: bits as u32 & 3,
            is_layered: bits >> 2 & 1 != 0,
            is_cube: bits >> 3 & 1 != 0,
        }
    }

    /// The layer and the coordinates among the elements of an operand.
    pub(super) fn split(self, o: &Ast) -> Lowered<(Option<&Ast>, &[Ast])> {
        let items = match o {
            Ast::Vector(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let (layer, rest) = match (self.is_layered, items) {
            (true, [layer, rest @ ..]) => (Some(layer), rest),
            _ => (None, items),
        };
        match rest.get(..self.coordinates as usize) {
            Some(coordinates) => Ok((layer, coordinates)),
            None => bad("too few coordinates"),
        }
    }
}

/// The handle that an operand names: a register, a reference of the module, a parameter.
pub(super) fn handle(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<Opd> {
    let name = match o {
        Ast::Name(s) => *s,
        Ast::Address {
            base: AddrBase::Name(s),
            offset: 0,
        } => *s,
        o => return l.src(o, Ty::B64),
    };
    match l.lookup(name) {
        Some(Entity::KernelParam(at)) => {
            let t = l.temp_rows(2);
            let h = load_parameter64();
            l.prepare(h, Opd::Def(t), Opd::None, Opd::None, Opd::None)
                .imm = u64::from(at);
            Ok(Opd::Use(t))
        }
        _ => l.src(&Ast::Name(name), Ty::B64),
    }
}

/// Calls `f` for the lanes of each image that the active lanes name by handles in `row`.
pub(super) fn by_binding<'l>(
    ctx: &mut Ctx<'l>,
    i: &DecodedInst,
    row: RowOperand,
    mut f: impl FnMut(&mut Ctx<'l>, &ImageBinding, u32),
) {
    let handles = ctx.rows.row::<u64>(row);
    let mut left = ctx.mask;
    while left != 0 {
        let first = left.trailing_zeros() as usize;
        let mut same = 0;
        each(left, |l| {
            same |= u32::from(handles[l] == handles[first]) << l
        });
        left &= !same;
        if let Some(binding) = bound(ctx, i, first, handles[first]) {
            f(ctx, &binding, same);
        }
    }
}

/// What `handle` stands for; a fault if it stands for nothing.
pub(super) fn bound(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    handle: u64,
) -> Option<Arc<ImageBinding>> {
    let found = ctx.run.spec.bindings.find(handle);
    if found.is_none() {
        wrong_handle(ctx, i, lane, handle, "a texture, surface or sampler");
    }
    found
}

#[cold]
pub(super) fn wrong_handle(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    handle: u64,
    wanted: &str,
) {
    let why = format!("{handle:#x} is no handle of {wanted}");
    ctx.fail(i, lane as u32, FaultKind::IllegalInstruction(why));
}

/// The handlers with checks or without.
pub(super) fn by_checks<P: Exec, C: Exec>(checks: bool) -> Handlers {
    match checks {
        true => handlers_plain::<C>(),
        false => handlers_plain::<P>(),
    }
}

fn load(window: &Window, at: u64, bytes: u32) -> TexelBits {
    match bytes {
        1 => [u64::from(window.load::<u8>(at)), 0],
        2 => [u64::from(window.load::<u16>(at)), 0],
        4 => [u64::from(window.load::<u32>(at)), 0],
        8 => [window.load::<u64>(at), 0],
        _ => [window.load::<u64>(at), window.load::<u64>(at + 8)],
    }
}

fn store(window: &mut Window, at: u64, bytes: u32, texel: TexelBits) {
    match bytes {
        1 => window.store::<u8>(at, texel[0] as u8),
        2 => window.store::<u16>(at, texel[0] as u16),
        4 => window.store::<u32>(at, texel[0] as u32),
        8 => window.store::<u64>(at, texel[0]),
        _ => {
            window.store::<u64>(at, texel[0]);
            window.store::<u64>(at + 8, texel[1]);
        }
    }
}

/// Reads the bytes at each lane's address; zeros where the access is not admitted.
pub(super) fn gather<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    access: CheckedAccess<'_>,
) -> [TexelBits; LANES] {
    let mut out = [[0; 2]; LANES];
    by_window::<CHECK>(ctx, i, addr, mask, access, |_, window, here| {
        each(here, |l| out[l] = load(&window, addr[l], access.size));
    });
    out
}

/// Writes each lane's bytes at its address.
pub(super) fn scatter<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    access: CheckedAccess<'_>,
    texels: &[TexelBits; LANES],
) {
    by_window::<CHECK>(ctx, i, addr, mask, access, |_, mut window, here| {
        each(here, |l| {
            store(&mut window, addr[l], access.size, texels[l])
        });
    });
}
