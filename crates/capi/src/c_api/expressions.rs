//! Expressions over a session's buffers, as text.
//!
//! Invariant: an invalid text or argument is reported before outputs are allocated. Elsewhere: the
//! parser (`fercuda_jit::text`), the compiler and its caches (`fercuda_jit`).

use core::ffi::c_char;

use fercuda_runtime::jit::{ExprGraph, text as texts};
use fercuda_runtime::{BufferId, Regime, Session};

use super::graphs::CAPTURES;
use super::types::{fer_named_buffer, fer_session};
use super::unkept::UnkeptBuffers;
use crate::handles::{SESSIONS, buffer as known};
use crate::pointers::{OutArray, list, text};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Evaluates expressions over buffers, behind the session's work: `t = a + 0.5; y = softmax(t)`.
/// The expressions of one call are fused, and compiled on first use; the code is cached, also for
/// other processes. Returns before the device is done. crates/jit/README.md has the grammar, and
/// every function with its rounding.
///
/// `inputs` binds the names in the text to buffers. `outputs` names each output of the text, which
/// are the statements that no later one uses: with a buffer of the session it is computed into
/// that, with 0 into a new one of the pool; its handle replaces the 0. An output may be an input
/// if each element is computed from the element at the same place. Buffers may be views; shapes are
/// broadcast, and types are never converted implicitly: `f16(x)` casts.
///
/// Instead of the session a fer_capture may be passed. Then nothing is computed, and the evaluation
/// becomes a part of the capture; an invalid overlap of an output is reported when that is
/// finished.
///
/// FER_ERROR_EXPRESSION, with line and column, if the text is invalid, or its outputs differ from
/// those named.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_evaluate(
    session: fer_session,
    expression: *const c_char,
    inputs: *const fer_named_buffer,
    input_count: u64,
    outputs: *mut fer_named_buffer,
    output_count: u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise; outputs are copied before there is room to write them.
        let (expression, inputs, wanted, room) = unsafe {
            (
                text("expression", expression)?,
                list("inputs", inputs, input_count)?,
                list("outputs", outputs.cast_const(), output_count)?.to_vec(),
                OutArray::new("outputs", outputs, output_count)?,
            )
        };
        let capture = match CAPTURES.may_have(session) {
            true => Some(CAPTURES.get("session", session)?),
            false => None,
        };
        let of = capture.as_ref().map_or(session, |capture| capture.session);
        let open = SESSIONS.get("session", of)?;
        // SAFETY: that names are texts is part of the caller's promise.
        let (mut graph, bound) = unsafe { bind(&open.session, inputs) }?;
        texts::parse(&mut graph, expression).map_err(|error| refused(error.to_string()))?;
        // SAFETY: as above.
        let places = unsafe { places(&open.session, &mut graph, &wanted) }?;
        let mut made = UnkeptBuffers::of(&open.session);
        let mut done = wanted.clone();
        let layouts: Vec<_> = graph.outputs().map(|(_, layout)| *layout).collect();
        let mut ids = Vec::with_capacity(places.len());
        for ((at, there), layout) in places.into_iter().zip(layouts) {
            let id = match there {
                Some(id) => id,
                None => made.add(open.session.alloc(layout, Regime::Pool)?),
            };
            done[at].buffer = id.to_bits();
            ids.push(id);
        }
        match &capture {
            Some(capture) => capture.add(open.session.prepare(&graph, &bound, &ids)?)?,
            None => open.session.evaluate_into(&graph, &bound, &ids)?,
        }
        made.keep();
        room.put(&done);
        Ok(())
    })
}

fn refused(what: String) -> CallFailure {
    CallFailure::new(fer_status::FER_ERROR_EXPRESSION, what)
}

/// Creates a graph with these inputs.
///
/// # Safety
/// Names are null or texts, which no thread writes meanwhile.
unsafe fn bind(
    session: &Session,
    inputs: &[fer_named_buffer],
) -> Result<(ExprGraph, Vec<BufferId>)> {
    let mut graph = ExprGraph::new();
    let mut bound = Vec::with_capacity(inputs.len());
    for (at, it) in inputs.iter().enumerate() {
        // SAFETY: the promise of this function's caller.
        let name = unsafe { text(&format!("inputs[{at}].name"), it.name) }?;
        let id = known(&format!("inputs[{at}].buffer"), it.buffer)?;
        let added = graph.input(name, session.layout(id)?);
        added.map_err(|error| refused(error.to_string()))?;
        bound.push(id);
    }
    Ok((graph, bound))
}

/// For each output of the graph, its index among those wanted, and its buffer if there is one.
///
/// # Safety
/// As for [`bind`].
unsafe fn places(
    session: &Session,
    graph: &mut ExprGraph,
    wanted: &[fer_named_buffer],
) -> Result<Vec<(usize, Option<BufferId>)>> {
    let mut named: Vec<(&str, Option<BufferId>)> = Vec::with_capacity(wanted.len());
    for (at, it) in wanted.iter().enumerate() {
        // SAFETY: the promise of this function's caller.
        let name = unsafe { text(&format!("outputs[{at}].name"), it.name) }?;
        let id = match it.buffer {
            0 => None,
            buffer => Some(known(&format!("outputs[{at}].buffer"), buffer)?),
        };
        if named.iter().any(|(other, _)| *other == name) {
            return Err(refused(format!(
                "outputs[{at}]: {name:?} is named twice\ntry: each output once"
            )));
        }
        let is_there = match id {
            Some(id) => graph
                .lay_out(name, session.layout(id)?)
                .map_err(|error| refused(error.to_string()))?,
            None => graph.outputs().any(|(other, _)| other == name),
        };
        if !is_there {
            let there: Vec<&str> = graph.outputs().map(|(name, _)| name).collect();
            let there = there.join(" ");
            return Err(refused(format!(
                "outputs[{at}]: there is no output {name:?}\ntry: one of: {there}"
            )));
        }
        named.push((name, id));
    }
    let place = |(name, _): (&str, _)| {
        let at = named.iter().position(|(other, _)| *other == name);
        let at = at.ok_or_else(|| {
            refused(format!(
                "the output {name:?} is not among those named\ntry: to name it, or a text without it"
            ))
        })?;
        Ok((at, named[at].1))
    };
    graph.outputs().map(place).collect()
}
