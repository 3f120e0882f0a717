//! Layout of the `fercuda top` screen, for any size of terminal.
//!
//! Consists of lines: the header, the processes, then details of the selected process. What
//! does not fit is omitted, the least important first; a table loses columns from the right.
//!
//! Invariant: the drawing depends only on the view and the size.

use std::time::Duration;

use fercuda_ledger::{DeviceSnapshot, LedgerSnapshot, StreamSnapshot};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::breakdown::Breakdown;
use super::columns::{Column, per_second, quantity, table_row};
use super::gpus::GpuLoad;
use super::order::{FILTER_CHARS, ProcessOrder, matches};
use crate::ledgers;
use crate::terminal::{bytes, clipped, count, plain_text};

/// Shown when no process is governed.
pub(super) const NO_PROCESS: &str = "No process is governed now.\ntry: fercuda run -- PROGRAM";

/// Shown when no process matches a filter.
pub(super) fn no_match(filter: &str) -> String {
    let filter = plain_text(filter);
    format!("No process or tenant has {filter:?} in its name.\ntry: another filter, or none")
}

/// Everything that is shown.
pub(super) struct View {
    processes: Vec<LedgerSnapshot>,
    /// The previous reading, and how long ago it was taken.
    before: Option<(Vec<LedgerSnapshot>, Duration)>,
    unreadable: usize,
    /// Process and device of the selected row.
    chosen: Option<(u64, u32)>,
    pub(super) paused: bool,
    /// Breakdown of the selected process's memory.
    pub(super) by: Breakdown,
    pub(super) order: ProcessOrder,
    /// Only processes that match this text are shown.
    pub(super) filter: String,
    /// Keys change the filter.
    typing: bool,
    pub(super) gpus: Vec<GpuLoad>,
    colour: bool,
}

/// A stream or a thread.
struct MemoryHolder {
    name: String,
    live_bytes: u64,
    allocs: u64,
    /// Allocations at the previous reading, and how long ago it was taken.
    before: Option<(u64, Duration)>,
}

const PROCESSES: [Column; 7] = [
    ("PID", 9),
    ("DEV", 4),
    ("LIVE", 10),
    ("PEAK", 10),
    ("POOL", 10),
    ("FREE", 10),
    ("GOVERNED", 10),
];
const TENANTS: [Column; 6] = [
    ("LIVE", 10),
    ("PEAK", 10),
    ("GOVERNED", 10),
    ("BLOCKS", 9),
    ("ALLOC/S", 9),
    ("LIMIT", 10),
];
/// Columns of streams and of threads.
const HOLDERS: [Column; 3] = [("LIVE", 10), ("ALLOCS", 10), ("ALLOC/S", 9)];
/// Screens with fewer rows show only what matters most.
const SHORT: usize = 16;
/// The most lines for GPUs.
const GPU_LINES: usize = 2;
impl View {
    pub(super) fn new(colour: bool) -> View {
        View {
            processes: Vec::new(),
            before: None,
            unreadable: 0,
            chosen: None,
            paused: false,
            by: Breakdown::default(),
            order: ProcessOrder::Start,
            filter: String::new(),
            typing: false,
            gpus: Vec::new(),
            colour,
        }
    }

    /// Handles a key; returns false if it ends the display.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, self.typing) {
            (KeyCode::Char('c'), _) if is_control => return false,
            (KeyCode::Esc, true) => {
                self.filter.clear();
                self.typing = false;
            }
            (KeyCode::Enter, true) => self.typing = false,
            (KeyCode::Backspace, true) => drop(self.filter.pop()),
            (KeyCode::Char(typed), true)
                if !is_control && self.filter.chars().count() < FILTER_CHARS =>
            {
                self.filter.push(typed);
            }
            (KeyCode::Char('q') | KeyCode::Esc, false) => return false,
            (KeyCode::Char('v'), false) => self.by = self.by.next(),
            (KeyCode::Char('s'), false) => self.order = self.order.next(),
            (KeyCode::Char('/'), false) => self.typing = true,
            (KeyCode::Char('p'), false) => self.paused = !self.paused,
            (KeyCode::Up | KeyCode::Char('k'), false) => self.choose(-1),
            (KeyCode::Down | KeyCode::Char('j'), false) => self.choose(1),
            _ => {}
        }
        true
    }

    /// Takes a new reading, `passed` after the last one.
    pub(super) fn update(
        &mut self,
        mut processes: Vec<LedgerSnapshot>,
        unreadable: usize,
        passed: Option<Duration>,
    ) {
        // Keeps the order of rows stable.
        processes.sort_by_key(|process| (process.begun_at_unix_ns, process.pid));
        let before = std::mem::replace(&mut self.processes, processes);
        self.before = passed.map(|passed| (before, passed));
        self.unreadable = unreadable;
    }

    /// Moves the selection by `step` rows.
    pub(super) fn choose(&mut self, step: isize) {
        let rows = self.rows();
        let now = self.place(&rows);
        let next = now
            .saturating_add_signed(step)
            .min(rows.len().saturating_sub(1));
        self.chosen = rows
            .get(next)
            .map(|(process, device)| (process.pid, device.device));
    }

    fn rows(&self) -> Vec<(&LedgerSnapshot, &DeviceSnapshot)> {
        let mut rows = ledgers::devices_of(&self.processes);
        rows.retain(|(process, _)| matches(process, &self.filter));
        self.order.sort(&mut rows);
        rows
    }

    fn place(&self, rows: &[(&LedgerSnapshot, &DeviceSnapshot)]) -> usize {
        let is_chosen = |(process, device): &(&LedgerSnapshot, &DeviceSnapshot)| {
            self.chosen == Some((process.pid, device.device))
        };
        rows.iter().position(is_chosen).unwrap_or(0)
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let lines = self.lines(usize::from(area.width), usize::from(area.height));
        let buffer = frame.buffer_mut();
        for (row, line) in (area.y..area.bottom()).zip(&lines) {
            buffer.set_line(area.x, row, line, area.width);
        }
    }

    /// The screen: at most `height` lines.
    fn lines(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let rows = self.rows();
        let mut lines = vec![self.head(width)];
        if height >= SHORT {
            lines.extend(self.gpu_lines(width));
        }
        let Some((process, device)) = rows.get(self.place(&rows)).copied() else {
            lines.push(Line::default());
            let why = match self.processes.is_empty() {
                true => NO_PROCESS.to_owned(),
                false => no_match(&self.filter),
            };
            lines.extend(why.lines().map(|line| Line::raw(clipped(line, width))));
            lines.truncate(height);
            return lines;
        };
        // The selected process needs at least its map and two tenants.
        let most = rows.len().min((height / 4).max(1));
        lines.extend(self.process_table(&rows, width, most));
        lines.extend(self.map(device, width, if height < SHORT { 1 } else { 2 }));
        let room = |lines: &[Line<'_>]| height.saturating_sub(lines.len());
        let parts = match self.by {
            Breakdown::Tenant => self.tenant_table(process, device, width),
            Breakdown::Stream => self.stream_table(process, device, width),
            Breakdown::Thread => self.thread_table(process, width),
        };
        let tail = self.tail(process, device, width);
        // Details come first; where there is height, the tail gets a third.
        let left = room(&lines);
        let for_tail = if height < SHORT { 0 } else { left / 3 };
        let for_parts = parts.len().min(left - for_tail.min(tail.len()));
        lines.extend(parts.into_iter().take(for_parts));
        let left = room(&lines);
        lines.extend(tail.into_iter().take(left));
        lines.truncate(height);
        lines
    }

    fn head(&self, width: usize) -> Line<'static> {
        let paused = if self.paused { "PAUSED, " } else { "" };
        let unreadable = match self.unreadable {
            0 => String::new(),
            some => format!(", {some} unreadable"),
        };
        let number = self.processes.len();
        let noun = if number == 1 { "process" } else { "processes" };
        let order = match self.order {
            ProcessOrder::Start => String::new(),
            order => format!(", by {}", order.name()),
        };
        let filter = match (self.typing, self.filter.as_str()) {
            (false, "") => String::new(),
            (false, filter) => format!(", filter {}", plain_text(filter)),
            (true, filter) => format!(", filter: {}_", plain_text(filter)),
        };
        let left = format!("fercuda top: {paused}{number} {noun}{unreadable}{order}{filter}");
        let right = match self.typing {
            true => "Enter Escape",
            false => "up/down v s / p q",
        };
        let gap = width.saturating_sub(left.chars().count() + right.len());
        if gap < 2 {
            return Line::styled(clipped(&left, width), self.strong());
        }
        Line::from(vec![
            Span::styled(left, self.strong()),
            Span::raw(" ".repeat(gap)),
            Span::styled(right, self.faint()),
        ])
    }

    /// Use and temperature of GPUs, several on a line; at most [`GPU_LINES`].
    fn gpu_lines(&self, width: usize) -> Vec<Line<'static>> {
        let mut lines: Vec<String> = Vec::new();
        for gpu in &self.gpus {
            let text = gpu.short();
            match lines.last_mut() {
                Some(line) if line.len() + 3 + text.len() <= width => {
                    line.push_str(" | ");
                    line.push_str(&text);
                }
                _ => lines.push(format!("GPU {text}")),
            }
        }
        if lines.len() > GPU_LINES {
            lines.truncate(GPU_LINES);
            if let Some(last) = lines.last_mut() {
                last.push_str(" ...");
            }
        }
        let line = |text: String| Line::raw(clipped(&text, width));
        lines.into_iter().map(line).collect()
    }

    fn process_table(
        &self,
        rows: &[(&LedgerSnapshot, &DeviceSnapshot)],
        width: usize,
        most: usize,
    ) -> Vec<Line<'static>> {
        let place = self.place(rows);
        // The selected row is always visible.
        let first = (place + 1).saturating_sub(most);
        let mut lines = vec![self.table_head("PROCESS", &PROCESSES, width)];
        for (at, (process, device)) in rows.iter().enumerate().skip(first).take(most) {
            let cells = [
                process.pid.to_string(),
                device.device.to_string(),
                bytes(device.live_bytes),
                bytes(device.peak_bytes),
                bytes(device.pooled_bytes),
                bytes(device.free_bytes()),
                bytes(device.governed_bytes()),
            ];
            let name = |width| ledgers::name(process, width);
            let text = table_row(name, &cells, &PROCESSES, width);
            lines.push(if at == place {
                Line::styled(text, Style::new().add_modifier(Modifier::REVERSED))
            } else {
                Line::raw(text)
            });
        }
        lines
    }

    /// The pool as a bar, its parts, and its rate of change.
    fn map(&self, device: &DeviceSnapshot, width: usize, legends: usize) -> Vec<Line<'static>> {
        // The scale is the limit, else the memory of the device, else the pool.
        let parts = [
            ("live", device.live_bytes, '#', Color::Green),
            ("free", device.free_bytes(), '-', Color::Blue),
            ("governed", device.governed_bytes(), '+', Color::Cyan),
        ];
        let used = parts
            .iter()
            .fold(0, |sum: u64, part| sum.saturating_add(part.1));
        let (whole, of) = match (device.limit_bytes, device.driver_total_bytes) {
            (Some(limit), _) => (limit, "limit"),
            (None, total) if total > 0 => (total, "device"),
            (None, _) => (device.pooled_bytes, "pool"),
        };
        let scale = whole.max(used).max(1);
        let room = width.saturating_sub(2);
        let mut bar = vec![Span::raw("[")];
        let (mut sum, mut drawn) = (0_u64, 0);
        for (_, part, sign, colour) in parts {
            sum = sum.saturating_add(part);
            // Rounded as running sums, so that the parts do not exceed the whole; a non-zero
            // part gets at least one character if there is room.
            let end = (u128::from(sum) * room as u128 / u128::from(scale)) as usize;
            let least = drawn + usize::from(part > 0);
            let end = end.max(least).min(room);
            let signs = sign.to_string().repeat(end.saturating_sub(drawn));
            bar.push(Span::styled(signs, self.coloured(colour)));
            drawn = end.max(drawn);
        }
        bar.push(Span::raw(" ".repeat(room.saturating_sub(drawn)) + "]"));
        let legend: Vec<String> = parts
            .iter()
            .filter(|(_, part, _, _)| *part > 0)
            .map(|(name, part, sign, _)| format!("{sign} {name} {}", bytes(*part)))
            .collect();
        let legend = format!("{of} {}: {}", bytes(whole), legend.join(", "));
        let mut lines = vec![Line::from(bar)];
        let legend = crate::terminal::wrapped(&legend, width);
        lines.extend(legend.into_iter().take(legends).map(Line::raw));
        lines
    }

    fn tenant_table(
        &self,
        process: &LedgerSnapshot,
        device: &DeviceSnapshot,
        width: usize,
    ) -> Vec<Line<'static>> {
        let mut rows: Vec<_> = process
            .tenants
            .iter()
            .flat_map(|tenant| tenant.accounts.iter().map(move |account| (tenant, account)))
            .filter(|(_, account)| account.device == device.device)
            .collect();
        rows.sort_by_key(|(tenant, account)| {
            let size = account.live_bytes.saturating_add(account.governed_bytes);
            (std::cmp::Reverse(size), tenant.name.clone())
        });
        let mut lines = vec![self.table_head("TENANT", &TENANTS, width)];
        for (tenant, account) in rows {
            let before = self.earlier(process).and_then(|(process, passed)| {
                let tenant = process.tenants.iter().find(|it| it.name == tenant.name)?;
                let mut accounts = tenant.accounts.iter();
                Some((accounts.find(|it| it.device == account.device)?, passed))
            });
            let rate =
                before.map(|(before, passed)| per_second(before.allocs, account.allocs, passed));
            let cells = [
                bytes(account.live_bytes),
                bytes(account.peak_bytes),
                bytes(account.governed_bytes),
                account.blocks.to_string(),
                rate.map_or_else(|| "-".to_owned(), quantity),
                account.limit_bytes.map_or_else(|| "none".to_owned(), bytes),
            ];
            let name = |width| clipped(&tenant.name, width);
            lines.push(Line::raw(table_row(name, &cells, &TENANTS, width)));
        }
        lines
    }

    fn stream_table(
        &self,
        process: &LedgerSnapshot,
        device: &DeviceSnapshot,
        width: usize,
    ) -> Vec<Line<'static>> {
        let rows = streams_of(process, device).map(|it| {
            let before = self.earlier(process).and_then(|(before, passed)| {
                let mut streams = before.streams.iter();
                let same = |before: &&StreamSnapshot| {
                    (before.stream, before.device) == (it.stream, it.device)
                };
                Some((streams.find(same)?.allocs, passed))
            });
            MemoryHolder {
                name: ledgers::stream(it.stream),
                live_bytes: it.live_bytes,
                allocs: it.allocs,
                before,
            }
        });
        self.holder_table("STREAM", rows.collect(), width)
    }

    fn thread_table(&self, process: &LedgerSnapshot, width: usize) -> Vec<Line<'static>> {
        let rows = process.threads.iter().map(|it| {
            let before = self.earlier(process).and_then(|(before, passed)| {
                let mut threads = before.threads.iter();
                let same = threads.find(|before| before.thread == it.thread)?;
                Some((same.allocs, passed))
            });
            MemoryHolder {
                name: ledgers::thread(it),
                live_bytes: it.live_bytes,
                allocs: it.allocs,
                before,
            }
        });
        self.holder_table("THREAD", rows.collect(), width)
    }

    /// Streams or threads, most live memory first.
    fn holder_table(
        &self,
        noun: &str,
        mut rows: Vec<MemoryHolder>,
        width: usize,
    ) -> Vec<Line<'static>> {
        rows.sort_by_key(|row| std::cmp::Reverse(row.live_bytes));
        let mut lines = vec![self.table_head(noun, &HOLDERS, width)];
        for row in rows {
            let before = row.before;
            let rate = before.map(|(before, passed)| per_second(before, row.allocs, passed));
            let cells = [
                bytes(row.live_bytes),
                row.allocs.to_string(),
                rate.map_or_else(|| "-".to_owned(), quantity),
            ];
            let name = |width| clipped(&row.name, width);
            lines.push(Line::raw(table_row(name, &cells, &HOLDERS, width)));
        }
        lines
    }

    /// Rates, streams and events, the most important first.
    fn tail(
        &self,
        process: &LedgerSnapshot,
        device: &DeviceSnapshot,
        width: usize,
    ) -> Vec<Line<'static>> {
        let mut texts = Vec::new();
        let before = self.earlier(process).and_then(|(process, passed)| {
            let mut devices = process.devices.iter();
            Some((devices.find(|it| it.device == device.device)?, passed))
        });
        if let Some((before, passed)) = before {
            let allocated = per_second(before.allocated_bytes, device.allocated_bytes, passed);
            texts.push(format!(
                "rates: {} allocs/s, {} frees/s, {}/s allocated",
                quantity(per_second(before.allocs, device.allocs, passed)),
                quantity(per_second(before.frees, device.frees, passed)),
                bytes(allocated as u64),
            ));
        }
        let one = std::slice::from_ref(process);
        texts.push(format!(
            "ungoverned {}, fallback {}{}",
            bytes(device.ungoverned_bytes),
            count(ledgers::fallbacks(one) as usize, "allocation"),
            if process.racing {
                "; counters are changing"
            } else {
                ""
            },
        ));
        if let Some(events) = ledgers::events(one) {
            texts.push(format!("events: {events}"));
        }
        let streams = streams(process, device);
        if self.by == Breakdown::Tenant && !streams.is_empty() {
            texts.push(format!("streams: {streams}"));
        }
        let events = process.events.iter().rev();
        let events = events.filter(|event| event.device == device.device);
        for event in events.take(8) {
            let at = event.at_ns as f64 / 1e9;
            texts.push(format!("{at:>10.3} s  {}", ledgers::event(event)));
        }
        let line = |text: String| Line::styled(clipped(&text, width), self.faint());
        texts.into_iter().map(line).collect()
    }

    /// The same process at the previous reading, and how long ago that was.
    fn earlier(&self, process: &LedgerSnapshot) -> Option<(&LedgerSnapshot, Duration)> {
        let (before, passed) = self.before.as_ref()?;
        let same = |other: &&LedgerSnapshot| {
            other.pid == process.pid && other.begun_at_unix_ns == process.begun_at_unix_ns
        };
        Some((before.iter().find(same)?, *passed))
    }

    fn table_head(&self, name: &str, columns: &[Column], width: usize) -> Line<'static> {
        let cells: Vec<String> = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        let text = table_row(|width| clipped(name, width), &cells, columns, width);
        Line::styled(text, self.strong())
    }

    fn strong(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn faint(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn coloured(&self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// The streams of a device, and memory that belongs to no stream.
fn streams_of<'s>(
    process: &'s LedgerSnapshot,
    device: &DeviceSnapshot,
) -> impl Iterator<Item = &'s StreamSnapshot> {
    let ordinal = device.device;
    let here = move |it: &&StreamSnapshot| it.device.is_none_or(|device| device == ordinal);
    process.streams.iter().filter(here)
}

/// Streams by live bytes: `7: 1.0 GiB, none: 3.0 MiB`.
fn streams(process: &LedgerSnapshot, device: &DeviceSnapshot) -> String {
    let mut streams: Vec<_> = streams_of(process, device).collect();
    streams.sort_by_key(|it| std::cmp::Reverse(it.live_bytes));
    let text = |it: &&StreamSnapshot| {
        let stream = ledgers::stream(it.stream);
        format!("{stream}: {}", bytes(it.live_bytes))
    };
    streams.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fercuda_ledger::{EventKind, Gauge, Governed, Ledger, LedgerDevice, LedgerEvent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// A process as its ledger shows it, with the given name, PID and age.
    fn process(pid: u64, program: &str, change: impl FnOnce(&Ledger)) -> LedgerSnapshot {
        let ledger = Ledger::in_memory();
        change(&ledger);
        let mut snapshot = ledger.snapshot().unwrap();
        snapshot.pid = pid;
        snapshot.program = program.to_owned();
        snapshot.begun_at_unix_ns = pid;
        for (place, event) in snapshot.events.iter_mut().enumerate() {
            event.at_ns = 1_500_000_000 * (place as u64 + 1);
        }
        snapshot
    }

    fn training(allocs: usize) -> LedgerSnapshot {
        process(4711, "python3.12", |ledger| {
            let device = LedgerDevice::new(0);
            let (torch, blas) = (ledger.tenant("torch"), ledger.tenant("cublas"));
            let mut local = ledger.local(1);
            for _ in 0..allocs {
                let block = local.charge(device, torch, 7, 4 << 20);
                local.discharge(block, 4 << 20);
            }
            local.charge(device, torch, 7, 3 << 30);
            local.charge(device, torch, 9, 1 << 30);
            local.charge(device, blas, 7, 64 << 20);
            ledger.charge(device, ledger.tenant("triton"), 1 << 20);
            ledger.govern(device, torch, Governed::Context, 512 << 20);
            ledger.set(device, Gauge::Pooled, 5 << 30);
            ledger.set(device, Gauge::Limit, 8 << 30);
            ledger.set_tenant_limit(device, torch, 6 << 30);
            for (kind, bytes, detail) in [
                (EventKind::Growth, 2 << 30, 5 << 30),
                (EventKind::TenantLimit, 3 << 30, 6 << 30),
            ] {
                ledger.record(LedgerEvent {
                    kind,
                    device,
                    tenant: torch,
                    bytes,
                    address: 0,
                    detail,
                    stream: 7,
                    thread: 1,
                });
            }
        })
    }

    fn view() -> View {
        let serving = process(4800, "a-server-with-a-very-long-name", |ledger| {
            let device = LedgerDevice::new(1);
            ledger.charge(device, ledger.tenant("jax"), 20 << 30);
            ledger.set(device, Gauge::Pooled, 24 << 30);
            ledger.reconcile(device, 141 << 30, 100 << 30, 3 << 20);
        });
        let mut view = View::new(false);
        view.update(vec![serving.clone(), training(100)], 0, None);
        view.update(
            vec![serving, training(2600)],
            1,
            Some(Duration::from_secs(2)),
        );
        view
    }

    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(usize::from(width.max(1)));
        let lines = rows.map(|row| {
            let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
            line.trim_end().to_owned() + "\n"
        });
        lines.collect()
    }

    /// Compares a screen with its file, or writes the file with `FERCUDA_BLESS=1`.
    #[track_caller]
    fn assert_screen(name: &str, screen: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src/top/screens")
            .join(name);
        if std::env::var_os("FERCUDA_BLESS").is_some_and(|it| it == "1") {
            std::fs::write(&path, screen).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(screen, expected, "\n{screen}");
    }

    #[test]
    fn the_usual_terminal_shows_processes_map_tenants_streams_and_events() {
        assert_screen("80x24.txt", &screen(&view(), 80, 24));
    }

    #[test]
    fn streams_and_threads_replace_the_tenants_when_requested() {
        let mut view = view();
        view.by = view.by.next();
        assert_screen("80x24-streams.txt", &screen(&view, 80, 24));
        view.by = view.by.next();
        assert_screen("80x24-threads.txt", &screen(&view, 80, 24));
        assert_eq!(view.by.next(), Breakdown::Tenant);
    }

    #[test]
    fn a_small_terminal_shows_what_matters_most() {
        assert_screen("40x10.txt", &screen(&view(), 40, 10));
    }

    #[test]
    fn the_selection_moves_down_and_stays_on_its_process() {
        let mut view = view();
        view.paused = true;
        for _ in 0..3 {
            view.choose(1);
        }
        assert_screen("80x24-second.txt", &screen(&view, 80, 24));
        view.update(vec![view.processes[1].clone()], 0, None);
        assert_eq!(view.chosen, Some((4800, 1)));
        assert!(screen(&view, 80, 24).contains("a-server-with-a~"));
        view.choose(-9);
        assert_eq!(view.chosen, Some((4800, 1)));
    }

    fn typed(view: &mut View, text: &str) {
        for typed in text.chars() {
            assert!(view.press(KeyEvent::new(KeyCode::Char(typed), KeyModifiers::NONE)));
        }
    }

    #[test]
    fn keys_change_order_and_filter() {
        let mut view = view();
        let first = |view: &View| view.rows()[0].0.program.clone();
        assert_eq!(first(&view), "python3.12");
        typed(&mut view, "s");
        assert_eq!(first(&view), "a-server-with-a-very-long-name");
        assert!(screen(&view, 80, 24).contains("unreadable, by live"));
        // Through all of them, back to the first.
        typed(&mut view, "ssssss");
        assert_eq!(view.order, ProcessOrder::Start);
        // A tenant's name, in any case; keys are text now.
        typed(&mut view, "/JAXq");
        assert!(view.rows().is_empty());
        let text = screen(&view, 80, 24);
        assert!(text.contains("filter: JAXq_"), "{text}");
        assert!(
            text.contains("No process or tenant has \"JAXq\" in its name."),
            "{text}"
        );
        assert!(view.press(KeyCode::Backspace.into()));
        assert!(view.press(KeyCode::Enter.into()));
        assert_eq!(first(&view), "a-server-with-a-very-long-name");
        assert_eq!(view.rows().len(), 1);
        assert!(screen(&view, 80, 24).contains("filter JAX"));
        // Escape removes the filter, then it quits.
        typed(&mut view, "/x");
        assert!(view.press(KeyCode::Esc.into()));
        assert_eq!(view.rows().len(), 2);
        assert!(!view.press(KeyCode::Esc.into()));
        assert!(!view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn gpus_share_lines_and_leave_room_for_processes() {
        let mut view = view();
        view.gpus = (0..8)
            .map(|n| GpuLoad {
                place: format!("{n}b:00.0"),
                name: "NVIDIA H200".to_owned(),
                busy_percent: Some(100 - n),
                celsius: (n > 0).then_some(40 + n),
                watts: Some(700),
            })
            .collect();
        assert_screen("80x24-gpus.txt", &screen(&view, 80, 24));
        assert!(!screen(&view, 40, 10).contains("GPU"));
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        let text = screen(&View::new(false), 80, 24);
        assert!(text.contains("No process is governed now."), "{text}");
        assert!(text.contains("try: fercuda run -- PROGRAM"), "{text}");
    }

    #[test]
    fn any_size_draws_and_only_colour_needs_colour() {
        for width in [0, 1, 2, 13, 39, 79, 300] {
            for height in [0, 1, 2, 5, 23, 100] {
                for by in [Breakdown::Tenant, Breakdown::Stream, Breakdown::Thread] {
                    let mut view = view();
                    view.by = by;
                    screen(&view, width, height);
                }
            }
        }
        let colours = |colour| {
            let mut view = view();
            view.colour = colour;
            let lines = view.lines(80, 24);
            let spans = lines.iter().flat_map(|line| &line.spans);
            spans.filter(|span| span.style.fg.is_some()).count()
        };
        assert_eq!(colours(false), 0);
        assert!(colours(true) > 0);
    }
}
