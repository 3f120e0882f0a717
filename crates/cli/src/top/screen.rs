//! Terminal mode of `fercuda top`.
//!
//! Invariant: the terminal is restored on every exit: by a key, an error, a panic (ratatui's
//! hook) or a termination signal.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fercuda_ledger::{Folder, LedgerSnapshot};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::gpus::Gpus;
use super::view::View;
use crate::ledgers;

/// How often ledgers are read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The longest delay before a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Draws until a key or a signal ends it.
pub(super) fn show(
    folder: &Folder,
    keep: &dyn Fn(&LedgerSnapshot) -> bool,
    view: View,
) -> Result<ExitCode> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGHUP, SIGINT, SIGQUIT] {
        let flag = Arc::clone(&signal);
        signal_hook::flag::register_usize(number, flag, number as usize)
            .context("cannot listen for signals")?;
    }
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal")?;
    let ended = draw(&mut terminal, view, (folder, keep), &signal);
    // Dropping the terminal shows the cursor again.
    drop(terminal);
    ratatui::restore();
    ended?;
    let number = signal.load(Ordering::Relaxed);
    if number != 0 {
        // The parent process sees which signal ended this one.
        signal_hook::low_level::emulate_default_handler(number as i32)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn draw(
    terminal: &mut DefaultTerminal,
    mut view: View,
    (folder, keep): (&Folder, &dyn Fn(&LedgerSnapshot) -> bool),
    signal: &AtomicUsize,
) -> Result<()> {
    let gpus = Gpus::open();
    let mut read_at: Option<Instant> = None;
    let mut changed = true;
    while signal.load(Ordering::Relaxed) == 0 {
        let now = Instant::now();
        let due = read_at.is_none_or(|at| now.duration_since(at) >= REFRESH_INTERVAL);
        if due && !view.paused {
            let (processes, unreadable) = ledgers::gather(folder, keep)?;
            let passed = read_at.map(|at| now.duration_since(at));
            view.update(processes, unreadable.len(), passed);
            view.gpus = gpus.read();
            read_at = Some(now);
        }
        if changed || due {
            terminal.draw(|frame| view.draw(frame))?;
        }
        changed = event::poll(POLL_INTERVAL)?;
        if !changed {
            continue;
        }
        // A resize only needs another draw.
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && !view.press(key)
        {
            break;
        }
    }
    Ok(())
}
