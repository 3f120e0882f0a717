//! Closing of sessions with the objects that belong to them.

use std::sync::Arc;

use fercuda_runtime::Session;

use super::arenas::ARENAS;
use super::dispatchers::{DISPATCHERS, TICKETS};
use super::graphs::{ARGUMENTS, CAPTURES, GRAPHS};
use super::jobs::JOBS;
use super::launches::{KERNELS, MODULES};
use super::ops::OP_PLANS;
use crate::handles::OpenSession;
use crate::status::Result;

/// Closes sessions that were removed from their table, with their objects; returns the first error
/// of their work. They are closed all the same.
pub(super) fn end(closing: &[(u64, Arc<OpenSession>)]) -> Result<()> {
    let is_closing = |session: u64| closing.iter().any(|(number, _)| *number == session);
    for (_, job) in JOBS.take(|job| is_closing(job.session)) {
        job.forget();
    }
    // Owners first: a thread that inserts one of their objects afterwards removes it again.
    let graphs = GRAPHS.take(|graphs| is_closing(graphs.session));
    for (_, capture) in CAPTURES.take(|capture| is_closing(capture.session)) {
        capture.end();
    }
    let blocks = ARGUMENTS.take(|block| is_closing(block.session));
    let modules = MODULES.take(|module| is_closing(module.session));
    let kernels = KERNELS.take(|kernel| is_closing(kernel.session));
    let arenas = ARENAS.take(|arena| is_closing(arena.session));
    let dispatchers = DISPATCHERS.take(|dispatcher| is_closing(dispatcher.session));
    let tickets = TICKETS.take(|ticket| is_closing(ticket.session));
    let plans = OP_PLANS.take(|plan| is_closing(plan.session));
    let sessions: Vec<Session> = closing.iter().map(|(_, it)| it.session.clone()).collect();
    let ended = Session::close_all(&sessions);
    // Their work is done, so no kernel of the modules runs any more, and tasks have been run.
    drop((kernels, modules, arenas, tickets, dispatchers));
    drop((graphs, blocks, plans));
    Ok(ended?)
}
