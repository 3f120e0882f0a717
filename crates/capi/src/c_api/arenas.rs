//! Tensors that are planned into one buffer before any memory is taken.

use core::ffi::c_char;
use std::collections::HashMap;

use fercuda_runtime::{BufferId, Dtype, Error, IgnitionPlan, Layout, Regime, Session, TensorSpec};

use super::types::{self, fer_arena, fer_arena_details, fer_buffer, fer_session, fer_tensor_spec};
use crate::handles::{ARENAS, SESSIONS};
use crate::pointers::{Place, Room, list, text};
use crate::status::{Failure, Result, fer_status, guarded};

/// An arena as C holds it.
pub(crate) struct Arena {
    pub(crate) session: u64,
    whole: BufferId,
    /// Each tensor's buffer, and where it begins in the arena.
    tensors: HashMap<String, (BufferId, u64)>,
    plan: IgnitionPlan,
}

/// Plans `count` tensors into one arena, takes it as one block of the pool, and makes a
/// buffer for each tensor there. Tensors that are needed at one step have no byte in
/// common; others may, so the program's steps are to be as the tensors say. All of it is
/// freed by fer_arena_free, or with its session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_ignite(
    session: fer_session,
    tensors: *const fer_tensor_spec,
    count: u64,
    arena: *mut fer_arena,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (tensors, place) = unsafe {
            (
                list("tensors", tensors, count)?,
                Place::new("arena", arena)?,
            )
        };
        let specs = tensors.iter().enumerate().map(|(at, tensor)| {
            // SAFETY: names are part of the caller's promise.
            unsafe { spec(at, tensor) }
        });
        let plan = IgnitionPlan::new(specs.collect::<Result<_>>()?)?;
        ignite(session, plan, place)
    })
}

/// The same by a plan that fer_arena_plan has written. All of it is checked.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_ignite_plan(
    session: fer_session,
    plan: *const c_char,
    arena: *mut fer_arena,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (plan, place) = unsafe { (text("plan", plan)?, Place::new("arena", arena)?) };
        ignite(session, IgnitionPlan::from_json(plan)?, place)
    })
}

/// # Safety
/// Its name is null or a text.
unsafe fn spec(at: usize, tensor: &fer_tensor_spec) -> Result<TensorSpec> {
    let name = |field: &str| format!("tensors[{at}].{field}");
    let rank = types::rank(&name("rank"), tensor.rank)?;
    Ok(TensorSpec {
        // SAFETY: the caller's promise.
        name: unsafe { text(&name("name"), tensor.name) }?.to_owned(),
        dtype: types::dtype(&name("dtype"), tensor.dtype)?,
        shape: tensor.shape[..rank].to_vec(),
        from: tensor.from_step,
        until: tensor.until_step,
    })
}

fn ignite(session: fer_session, plan: IgnitionPlan, place: Place<fer_arena>) -> Result<()> {
    let open = SESSIONS.get("session", session)?;
    let bytes = Layout::contiguous(Dtype::U8, &[plan.arena_bytes()])?;
    let mut arena = Arena {
        session,
        whole: open.session.alloc(bytes, Regime::Pool)?,
        tensors: HashMap::new(),
        plan,
    };
    let made = arena.make(&open.session);
    if let Err(failure) = made {
        arena.free(&open.session)?;
        return Err(failure);
    }
    place.put(ARENAS.insert_of(&SESSIONS, session, arena)?);
    Ok(())
}

impl Arena {
    /// A buffer for each tensor.
    fn make(&mut self, session: &Session) -> Result<()> {
        for (tensor, begin) in self.plan.tensors() {
            let layout = tensor.layout()?;
            // An arena has at most 2^56 bytes.
            let view = session.view(self.whole, |_| Ok((layout, begin as i64)))?;
            self.tensors.insert(tensor.name.clone(), (view, begin));
        }
        Ok(())
    }

    fn free(&self, session: &Session) -> Result<()> {
        let tensors = self.tensors.values().map(|(id, _)| *id);
        for id in tensors.chain([self.whole]) {
            match session.free(id) {
                // What the caller has freed, or the session's end, is freed.
                Ok(()) | Err(Error::Stale(_) | Error::Ended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// What an arena is.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arena_info(
    arena: fer_arena,
    details: *mut fer_arena_details,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("details", details) }?;
        let arena = ARENAS.get("arena", arena)?;
        place.put(fer_arena_details {
            buffer: arena.whole.to_bits(),
            bytes: arena.plan.arena_bytes(),
            tensors: arena.tensors.len() as u64,
        });
        Ok(())
    })
}

/// A tensor of an arena by its name: its buffer, and where it begins in the arena, in
/// bytes; `offset_bytes` may be NULL.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arena_tensor(
    arena: fer_arena,
    name: *const c_char,
    buffer: *mut fer_buffer,
    offset_bytes: *mut u64,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (name, place, offset) = unsafe {
            let offset = match offset_bytes.is_null() {
                true => None,
                false => Some(Place::new("offset_bytes", offset_bytes)?),
            };
            (text("name", name)?, Place::new("buffer", buffer)?, offset)
        };
        let arena = ARENAS.get("arena", arena)?;
        let Some((id, begin)) = arena.tensors.get(name) else {
            return Err(Failure::argument(
                "name",
                format!(
                    "there is no tensor {name:?} among {}\ntry: a name that it was planned with",
                    arena.tensors.len()
                ),
            ));
        };
        place.put(id.to_bits());
        if let Some(offset) = offset {
            offset.put(*begin);
        }
        Ok(())
    })
}

/// An arena's plan as text, for a file and fercuda_ignite_plan. `text` has room for
/// `room` bytes, and may be NULL for none; the text is cut to fit, and ends with a zero
/// byte wherever there is room for one. `needed` gets how many bytes it has with that.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arena_plan(
    arena: fer_arena,
    text: *mut c_char,
    room: u64,
    needed: *mut u64,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (into, place) = unsafe {
            (
                Room::new("text", text.cast::<u8>(), room)?,
                Place::new("needed", needed)?,
            )
        };
        let mut plan = ARENAS.get("arena", arena)?.plan.to_json().into_bytes();
        plan.push(0);
        place.put(plan.len() as u64);
        if let Some(last) = room.checked_sub(1).filter(|last| *last < plan.len() as u64) {
            plan[last as usize] = 0;
        }
        into.put(&plan);
        Ok(())
    })
}

/// Frees an arena with the buffers of its tensors at once, and its memory behind the last
/// work that was queued with them. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_arena_free(arena: fer_arena) -> fer_status {
    guarded(|| {
        let arena = ARENAS.remove("arena", arena)?;
        match SESSIONS.get("session", arena.session) {
            Ok(open) => arena.free(&open.session),
            // It has just been closed, and the arena with it.
            Err(_) => Ok(()),
        }
    })
}
