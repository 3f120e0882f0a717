//! Probabilities of given tokens, steps that are prepared, and times of a step's ops.

use std::time::Duration;

use crate::blocks::BlockPool;
use crate::engine::Engine;
use crate::error::{LlmError, refused};
use crate::sampler::log_sum;
use crate::states::{StatePool, state_pool};
use crate::step_inputs::{PLACES, StepKey, TokenRun, TokenSource, padded, padded_all};

type Result<T> = std::result::Result<T, LlmError>;

/// Position of the tokens of a step that is measured.
const MEASURED_POSITION: u64 = 200;

impl Engine {
    /// Logarithms of the probabilities of tokens, each behind all before it: of the second one and
    /// of those that follow. As many are computed at once as requests may run.
    ///
    /// # Errors
    /// [`LlmError::Request`] of tokens that do not fit, or while requests are there; else as
    /// [`Engine::step`].
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_tokens(tokens)?;
        if !self.is_idle() {
            let what = "scores while requests run";
            return Err(refused(what, "when they have ended"));
        }
        let wanted = tokens.len().div_ceil(PLACES as usize);
        let blocks: Vec<u32> = std::iter::from_fn(|| self.pool.take())
            .take(wanted)
            .collect();
        // No request has one.
        let slot = self.states.as_mut().and_then(StatePool::take);
        let scores = match blocks.len() == wanted {
            true => self.score_in(tokens, &blocks, slot),
            false => {
                let what = format!("{} tokens in {} blocks", tokens.len(), blocks.len());
                Err(refused(what, "a larger cache"))
            }
        };
        self.pool.give_back(blocks);
        if let Some((states, slot)) = self.states.as_mut().zip(slot) {
            states.give_back(slot);
        }
        scores
    }

    fn score_in(&mut self, tokens: &[u32], blocks: &[u32], slot: Option<u32>) -> Result<Vec<f32>> {
        let vocabulary = self.decoder.vocabulary() as usize;
        let mut scores = Vec::new();
        let most = self.limits.rows.min(self.limits.tokens) as usize;
        for first in (0..tokens.len()).step_by(most) {
            let own = &tokens[first..tokens.len().min(first + most)];
            let block = &mut self.inputs;
            block.clear();
            block.set_blocks(0, blocks);
            for (at, token) in own.iter().enumerate() {
                block.set_token(at, *token, first + at, 0);
                block.set_place(at, first + at, blocks);
                block.set_row(at, at as i32);
            }
            let rows = (own.len() as u64).next_power_of_two();
            let key = StepKey {
                singles: 0,
                runs: rows,
                rows,
                source: TokenSource::Host,
                is_sampled: false,
                has_adapters: false,
            };
            let run = TokenRun {
                first: 0,
                count: own.len(),
                from: slot.filter(|_| first > 0),
                to: slot,
                kept: None,
            };
            self.inputs.set_runs(&[run], key);
            self.queue(key)?;
            let of_rows = self.logits_of(rows)?;
            let logits: Vec<f32> = self.session.download(of_rows)?;
            let followers = tokens[first + 1..].iter();
            for (logits, token) in logits.chunks(vocabulary).take(own.len()).zip(followers) {
                let score = logits[*token as usize] - log_sum(logits);
                if score.is_nan() {
                    return Err(LlmError::NotNumbers);
                }
                scores.push(score);
            }
        }
        Ok(scores)
    }

    /// Prepares steps of the sizes that requests have: their kernels are compiled, so that no
    /// request waits for that. `progress` gets how many are prepared, and of how many.
    ///
    /// # Errors
    /// [`LlmError::Op`] and [`LlmError::Runtime`] of the device.
    pub fn prepare_steps(&mut self, mut progress: impl FnMut(usize, usize)) -> Result<()> {
        let mut keys = Vec::new();
        let most = padded(self.requests) as usize;
        let singles = std::iter::successors(Some(1), |it| Some(it * 2));
        for singles in singles.take_while(|it| *it <= most) {
            for is_sampled in [false, true] {
                for source in [TokenSource::Host, TokenSource::Before] {
                    let rows = singles as u64;
                    keys.push(StepKey {
                        singles: rows,
                        runs: 0,
                        rows,
                        source,
                        is_sampled,
                        has_adapters: false,
                    });
                }
            }
        }
        let mut runs = 1;
        while runs <= self.limits.tokens {
            keys.push(StepKey {
                singles: 0,
                runs,
                rows: 1,
                source: TokenSource::Host,
                is_sampled: false,
                has_adapters: false,
            });
            runs = padded_all(runs as usize + 1);
        }
        let count = keys.len();
        for (at, key) in keys.into_iter().enumerate() {
            progress(at, count);
            self.prepare(key)?;
        }
        progress(count, count);
        Ok(())
    }

    /// Ops of a step of so many tokens, with their kernels and their times on the device, in order.
    /// Nothing may run; what the cache has is lost.
    ///
    /// # Errors
    /// [`LlmError::Op`] and [`LlmError::Runtime`] of the device.
    pub fn op_times(
        &mut self,
        tokens: u64,
        rounds: usize,
    ) -> Result<Vec<(&'static str, &'static str, Duration)>> {
        let all = tokens.clamp(1, self.limits.tokens).next_power_of_two();
        let (singles, runs) = match all {
            1 => (1, 0),
            _ => (0, all),
        };
        let key = StepKey {
            singles,
            runs,
            rows: 1,
            source: TokenSource::Host,
            is_sampled: false,
            has_adapters: false,
        };
        self.prepare(key)?;
        let block = &mut self.inputs;
        block.clear();
        let position = MEASURED_POSITION.min(self.context - 1) as usize;
        for at in 0..all as usize {
            block.set_token(at, 0, position, 0);
        }
        let run = TokenRun {
            count: all as usize,
            ..TokenRun::default()
        };
        block.set_runs(&[run], key);
        self.exchange
            .upload(&mut self.inputs, self.session.stream())?;
        let Some(step) = self.steps.get(&key) else {
            return Ok(Vec::new());
        };
        let times = step.times(self.planner.context(), self.session.stream(), rounds.max(1))?;
        self.pool = BlockPool::new(self.limits.blocks as u32);
        self.states = state_pool(&self.limits);
        Ok(times)
    }
}
