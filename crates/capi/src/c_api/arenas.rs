//! Arenas: tensors planned into one buffer before memory is allocated.

use core::ffi::c_char;
use std::collections::HashMap;

use fercuda_runtime::{BufferId, Dtype, Error, IgnitionPlan, Layout, Regime, Session, TensorSpec};

use super::types::{self, fer_arena, fer_arena_details, fer_buffer, fer_session, fer_tensor_spec};
use crate::handles::{Handles, SESSIONS};
use crate::pointers::{OutArray, OutPointer, list, text};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// An arena of the C interface.
pub(crate) struct OpenArena {
    pub(crate) session: u64,
    whole: BufferId,
    /// Each tensor's buffer, and its offset in the arena.
    tensors: HashMap<String, (BufferId, u64)>,
    plan: IgnitionPlan,
}

pub(crate) static ARENAS: Handles<OpenArena> = Handles::new(5);

/// Plans `count` tensors into one arena, allocates it as one block of the pool, and creates a
/// buffer for each tensor in it. Tensors that are live at one step do not overlap; others may, so
/// the program's steps must match the tensors'. Freed by fer_arena_free, or with its session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_ignite(
    session: fer_session,
    tensors: *const fer_tensor_spec,
    count: u64,
    arena: *mut fer_arena,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (tensors, place) = unsafe {
            (
                list("tensors", tensors, count)?,
                OutPointer::new("arena", arena)?,
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

/// The same with a plan from fer_arena_plan. All of it is validated.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fercuda_ignite_plan(
    session: fer_session,
    plan: *const c_char,
    arena: *mut fer_arena,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (plan, place) = unsafe { (text("plan", plan)?, OutPointer::new("arena", arena)?) };
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

fn ignite(session: fer_session, plan: IgnitionPlan, place: OutPointer<fer_arena>) -> Result<()> {
    let open = SESSIONS.get("session", session)?;
    let bytes = Layout::contiguous(Dtype::U8, &[plan.arena_bytes()])?;
    let mut arena = OpenArena {
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

impl OpenArena {
    /// Creates a buffer for each tensor.
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
                // The caller has freed it, or the session's end has.
                Ok(()) | Err(Error::Stale(_) | Error::Ended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns properties of an arena.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arena_info(
    arena: fer_arena,
    details: *mut fer_arena_details,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let arena = ARENAS.get("arena", arena)?;
        place.put(fer_arena_details {
            buffer: arena.whole.to_bits(),
            bytes: arena.plan.arena_bytes(),
            tensors: arena.tensors.len() as u64,
        });
        Ok(())
    })
}

/// Looks up a tensor of an arena by its name: its buffer, and its offset in the arena, in bytes;
/// `offset_bytes` may be NULL.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arena_tensor(
    arena: fer_arena,
    name: *const c_char,
    buffer: *mut fer_buffer,
    offset_bytes: *mut u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (name, place, offset) = unsafe {
            let offset = match offset_bytes.is_null() {
                true => None,
                false => Some(OutPointer::new("offset_bytes", offset_bytes)?),
            };
            (
                text("name", name)?,
                OutPointer::new("buffer", buffer)?,
                offset,
            )
        };
        let arena = ARENAS.get("arena", arena)?;
        let Some((id, begin)) = arena.tensors.get(name) else {
            return Err(CallFailure::argument(
                "name",
                format!(
                    "there is no tensor {name:?} among {}\ntry: a name of the plan",
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

/// Writes an arena's plan as text, for a file and fercuda_ignite_plan. `text` has room for `room`
/// bytes, and may be NULL for none; the text is truncated to fit, and zero-terminated if there is
/// any room. `needed` is set to its length including the zero byte.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arena_plan(
    arena: fer_arena,
    text: *mut c_char,
    room: u64,
    needed: *mut u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (into, place) = unsafe {
            (
                OutArray::new("text", text.cast::<u8>(), room)?,
                OutPointer::new("needed", needed)?,
            )
        };
        let plan = ARENAS.get("arena", arena)?.plan.to_json();
        place.put(into.put_text(plan));
        Ok(())
    })
}

/// Invalidates an arena and the buffers of its tensors at once, and frees its memory behind the
/// last work that was queued with them. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_arena_free(arena: fer_arena) -> fer_status {
    catch_panics(|| {
        let arena = ARENAS.remove("arena", arena)?;
        match SESSIONS.get("session", arena.session) {
            Ok(open) => arena.free(&open.session),
            // The session was just closed, and the arena with it.
            Err(_) => Ok(()),
        }
    })
}
