//! Tokens of a step: of which requests, how many, and in which places.

use crate::chosen::RowChoice;
use crate::drafts::DraftRequest;
use crate::engine::Engine;
use crate::error::LlmError;
use crate::request::{RequestId, RunningRequest};
use crate::step_inputs::{PLACES, StepKey, TokenRun, TokenSource, padded, padded_all};
use crate::step_parts::{QueuedStep, RequestRows, StepPart};

type Result<T> = std::result::Result<T, LlmError>;

/// Tokens of a request in a step, and whether it is a single one.
type PartCount = (RequestId, usize, bool);

impl Engine {
    /// The parts of a step that goes on by what that one chooses, whatever this is: there is one if
    /// the device chooses. Requests that end by their length are not in it; others begin or go on
    /// with their prompts beside. Blocks are those that are free: none is taken from a request.
    pub(crate) fn parts_ahead(&mut self, queued: &QueuedStep) -> Option<Vec<StepPart>> {
        // Guesses go by what is known.
        if !self.can_be_ahead || self.drafter.is_some() {
            return None;
        }
        if queued.rows.is_empty() {
            self.admit();
            return Some(self.schedule()).filter(|it| !it.is_empty());
        }
        queued.choices.as_ref()?;
        let places = PLACES as usize;
        let mut parts = Vec::new();
        for (row, rows) in queued.rows.iter().enumerate() {
            let Some(at) = self.place_of(rows.request) else {
                continue;
            };
            let request = &self.running[at];
            let known = request.tokens.len() + 1;
            if known - request.prompt >= request.max_tokens || known as u64 > self.context {
                continue;
            }
            // A state that is kept in vain would be instead of one that is of use.
            let is_kept = self.states.is_some() && known.is_multiple_of(places);
            if request.computed + 1 != known || is_kept || !self.take_free_blocks(at, 1) {
                return None;
            }
            parts.push(StepPart {
                request: at,
                count: 1,
                drafts: Vec::new(),
                is_single: true,
                row: Some(row),
            });
        }
        self.admit();
        let singles = padded(parts.len()) as usize;
        let mut left = (self.limits.tokens as usize).saturating_sub(singles);
        if singles > 0 {
            left = left.min(self.limits.beside as usize);
        }
        let is_in = |id: RequestId| queued.rows.iter().any(|rows| rows.request == id);
        let mut others: Vec<RequestId> = self.running.iter().map(|it| it.id).collect();
        others.retain(|id| !is_in(*id));
        others.sort_unstable();
        for id in others {
            let at = self.place_of(id)?;
            let count = self.running[at].part_of(self.running[at].pending().min(left));
            if count == 0 || !self.take_free_blocks(at, count) {
                break;
            }
            left -= count;
            parts.push(StepPart {
                request: at,
                count,
                drafts: Vec::new(),
                is_single: false,
                row: None,
            });
        }
        // Without room for such a step, the others are as good.
        let key = self.key_of(&parts);
        if parts.is_empty() || self.prepare(key).is_err() {
            self.can_be_ahead &= parts.is_empty();
            return None;
        }
        Some(parts)
    }

    /// Takes free blocks for so many more tokens of a request; returns whether there were enough.
    fn take_free_blocks(&mut self, at: usize, count: usize) -> bool {
        let request = &mut self.running[at];
        // Behind the tokens that a step which is queued computes.
        let wanted = (request.computed + count).div_ceil(PLACES as usize);
        while request.blocks.len() < wanted {
            let Some(block) = self.pool.take() else {
                return false;
            };
            request.blocks.push(block);
        }
        true
    }

    /// The key of a step of these parts.
    fn key_of(&self, parts: &[StepPart]) -> StepKey {
        let of_singles = parts.iter().filter(|it| it.is_single).count();
        let singles = padded(of_singles);
        let all: usize = parts.iter().map(StepPart::tokens).sum();
        let runs = match all - of_singles {
            0 => 0,
            others => padded_all(singles as usize + others).min(self.limits.tokens) - singles,
        };
        let continues = || parts.iter().map_while(|it| it.row);
        let source = match continues().next() {
            None => TokenSource::Host,
            Some(_) if continues().eq(0..of_singles) => TokenSource::Before,
            Some(_) => TokenSource::BeforeByRow,
        };
        let rows = parts.iter().map(|it| match self.has_row(it) {
            true => 1 + it.drafts.len() as u64,
            false => 0,
        });
        StepKey {
            singles,
            runs,
            rows: rows.sum::<u64>().max(1).next_power_of_two(),
            source,
            is_sampled: self.choice_of(parts) == RowChoice::Sampled,
            has_adapters: parts
                .iter()
                .any(|it| self.running[it.request].adapter.is_some()),
        }
    }

    /// Whether a part has the last of its request's tokens that are known or being chosen.
    fn has_row(&self, part: &StepPart) -> bool {
        let request = &self.running[part.request];
        let known = request.tokens.len() + usize::from(part.row.is_some());
        request.computed + part.count == known
    }

    /// How the tokens of a step's rows are chosen.
    pub(crate) fn choice_of(&self, parts: &[StepPart]) -> RowChoice {
        let with_rows = parts.iter().filter(|it| self.has_row(it));
        let choices = with_rows.map(|it| self.running[it.request].choice());
        choices.max().unwrap_or(RowChoice::Largest)
    }

    /// Lets waiting requests run, while there are rows and a block for each.
    pub(crate) fn admit(&mut self) {
        while self.running.len() < self.requests && self.pool.free() > 0 {
            let Some(mut request) = self.waiting.pop_front() else {
                return;
            };
            let is_free = |row: &usize| self.running.iter().all(|it| it.row != *row);
            // There are as many rows as requests may run.
            request.row = (0..).find(is_free).unwrap_or_default();
            if !request.find_prefix(&mut self.pool, self.states.as_mut()) {
                self.waiting.push_front(request);
                return;
            }
            if request.tokens.len() == request.prompt {
                request.reused = request.computed;
            }
            self.running.push(request);
        }
    }

    /// Has the next tokens of requests guessed that generate. The guesses of a step have rows of
    /// logits, which are few.
    pub(crate) fn guess(&mut self) -> Result<()> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(());
        };
        let limits = &self.limits;
        // One is of each request.
        let mut rows = (limits.rows as usize).saturating_sub(self.running.len());
        let mut wanted = Vec::new();
        for (at, request) in self.running.iter_mut().enumerate() {
            request.drafts.clear();
            let room = request.room_for_drafts(limits.drafts as usize, self.context);
            let most = room.min(rows);
            if most == 0 || !request.can_go_back(self.states.as_mut()) {
                continue;
            }
            rows -= most;
            wanted.push((at, most));
        }
        let requests = wanted.iter().map(|(at, most)| DraftRequest {
            request: self.running[*at].id,
            tokens: &self.running[*at].tokens,
            most: *most,
        });
        let requests: Vec<DraftRequest<'_>> = requests.collect();
        if requests.is_empty() {
            return Ok(());
        }
        let drafts = drafter.draft(&requests)?;
        let vocabulary = self.decoder.vocabulary();
        for ((at, most), mut draft) in wanted.into_iter().zip(drafts) {
            let is_known = |token: &u32| u64::from(*token) < vocabulary;
            let known = draft.iter().take_while(|it| is_known(it)).count();
            draft.truncate(known.min(most));
            self.running[at].drafts = draft;
        }
        Ok(())
    }

    /// Chooses how many tokens of each request are computed, and takes blocks for them: first of
    /// those that generate, then of prompts, in the order in which they came.
    pub(crate) fn schedule(&mut self) -> Vec<StepPart> {
        let of_singles = self.running.iter().filter(|it| it.is_single()).count();
        let padding = padded(of_singles) as usize - of_singles;
        let mut left = (self.limits.tokens as usize).saturating_sub(padding);
        let most = self.limits.drafts as usize;
        let is_mixed = self.running.iter().any(|it| it.goes_on(most));
        let mut beside = match is_mixed {
            true => self.limits.beside as usize,
            false => usize::MAX,
        };
        let turn = |it: &RunningRequest| match it.is_single() {
            true => 0,
            false => 1 + u8::from(!it.goes_on(most)),
        };
        let mut order: Vec<(u8, RequestId)> =
            self.running.iter().map(|it| (turn(it), it.id)).collect();
        order.sort_unstable();
        let mut counts: Vec<PartCount> = Vec::new();
        for (turn, id) in order {
            let Some(at) = self.place_of(id) else {
                continue;
            };
            let pending = self.running[at].pending();
            let most = if turn == 2 { left.min(beside) } else { left };
            let count = self.running[at].part_of(pending.min(most));
            if count == 0 {
                break;
            }
            if !self.take_blocks(id, count, &mut counts) {
                continue;
            }
            left -= count;
            if turn == 2 {
                beside -= count;
            }
            counts.push((id, count, turn == 0));
            if turn == 1 && count == pending {
                left -= self.take_draft_blocks(id, left);
            } else if let Some(at) = self.place_of(id) {
                self.running[at].drafts.clear();
            }
        }
        let parts = counts.into_iter().filter_map(|(id, count, is_single)| {
            let request = self.place_of(id)?;
            Some(StepPart {
                request,
                count,
                is_single,
                row: None,
                drafts: std::mem::take(&mut self.running[request].drafts),
            })
        });
        parts.collect()
    }

    /// Takes blocks for so many more tokens of a request. Where none is free, the request that came
    /// last gives its own back, and is computed again later.
    fn take_blocks(&mut self, id: RequestId, count: usize, counts: &mut Vec<PartCount>) -> bool {
        loop {
            let Some(at) = self.place_of(id) else {
                return false;
            };
            if self.take_free_blocks(at, count) {
                return true;
            }
            let last = self.running.iter().map(|it| it.id).max().unwrap_or(id);
            counts.retain(|(other, ..)| *other != last);
            if let Some(at) = self.place_of(last) {
                let mut evicted = self.running.remove(at);
                evicted.give_back(&mut self.pool, self.states.as_mut());
                self.waiting.push_front(evicted);
            }
        }
    }

    /// Takes blocks for the guesses of a request, as many as are free beside one for each other
    /// request, and does without the other guesses; returns how many are left of so many.
    fn take_draft_blocks(&mut self, id: RequestId, most: usize) -> usize {
        let Some(at) = self.place_of(id) else {
            return 0;
        };
        let kept_free = self.running.len();
        let request = &mut self.running[at];
        request.drafts.truncate(most);
        let wanted = (request.tokens.len() + request.drafts.len()).div_ceil(PLACES as usize);
        while request.blocks.len() < wanted && self.pool.free() > kept_free {
            let Some(block) = self.pool.take() else {
                break;
            };
            request.blocks.push(block);
        }
        let room = request.blocks.len() * PLACES as usize;
        let fitting = room.saturating_sub(request.tokens.len());
        request.drafts.truncate(fitting);
        request.drafts.len()
    }

    /// Fills the argument block; returns the step that it is for, and the requests whose logits are
    /// computed.
    pub(crate) fn fill_arguments(&mut self, parts: Vec<StepPart>) -> (StepKey, Vec<RequestRows>) {
        let key = self.key_of(&parts);
        let of_singles = parts.iter().filter(|it| it.is_single).count();
        self.inputs.clear();
        let (mut at, mut rows, mut row) = (0, Vec::new(), 0);
        let mut runs = Vec::new();
        // Those that generate come first.
        for (number, part) in parts.into_iter().enumerate() {
            if number == of_singles {
                // Rows of padding are of no run.
                runs.extend((at..key.singles as usize).map(|first| TokenRun {
                    first,
                    ..TokenRun::default()
                }));
                at = key.singles as usize;
            }
            let has_row = self.has_row(&part);
            let block = &mut self.inputs;
            let request = &mut self.running[part.request];
            let known = request.tokens.len() + usize::from(part.row.is_some());
            let tokens = (at, part.count, part.drafts.len());
            let states = self.states.as_mut();
            runs.extend(states.and_then(|it| request.run(tokens, known, it)));
            block.set_blocks(request.row, &request.blocks);
            for offset in 0..part.tokens() {
                let position = request.computed + offset;
                let guess = offset.checked_sub(part.count).map(|it| part.drafts[it]);
                // One that is being chosen is read on the device.
                let before = part.row.map(|it| it as u32);
                let token = before.or(guess).or(request.tokens.get(position).copied());
                block.set_token(at, token.unwrap_or_default(), position, request.row);
                block.set_place(at, position, &request.blocks);
                block.set_adapter(at, request.adapter.map(|it| it.0));
                if has_row && offset + 1 >= part.count {
                    block.set_row(row, at as i32);
                    if key.is_sampled {
                        block.set_settings(row, request.sampler.settings(position + 1));
                    }
                    row += 1;
                }
                at += 1;
            }
            if has_row {
                rows.push(RequestRows {
                    request: request.id,
                    drafts: part.drafts,
                });
            }
        }
        self.inputs.set_runs(&runs, key);
        (key, rows)
    }
}
