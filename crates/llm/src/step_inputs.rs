//! Sizes of steps, and what a step reads of its tokens.

use std::ops::Range;

use fercuda_runtime::GraphKey;

/// Positions of a block of the cache.
pub(crate) const PLACES: u64 = 16;
/// Numbers by which a token is chosen, as the op `choose_by_weight` reads them.
pub(crate) const SETTINGS: u64 = 6;
/// Numbers of a run, as the ops of states read them.
pub(crate) const RUN_NUMBERS: u64 = 6;
/// Which of a token's numbers is that of its adapter; -1 for none.
pub(crate) const ADAPTER: u64 = 4;

/// Sizes for which memory is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLimits {
    /// Tokens of a step.
    pub(crate) tokens: u64,
    pub(crate) requests: u64,
    /// Rows of logits: one of each request, and of guesses.
    pub(crate) rows: u64,
    /// Guesses of a request's tokens.
    pub(crate) drafts: u64,
    /// Tokens of prompts in a step in which others generate.
    pub(crate) beside: u64,
    /// Blocks of a request.
    pub(crate) blocks_each: u64,
    /// Blocks of the cache.
    pub(crate) blocks: u64,
    /// Positions of a block.
    pub(crate) places: u64,
    /// Slots of states; 0 where no layer has some.
    pub(crate) slots: u64,
    /// Tokens of a step from which blocks of weights become 16-bit floats before they are
    /// multiplied, which tensor cores do faster.
    pub(crate) wide_from: u64,
    /// Whether products of few tokens are one launch with their norm, gate and residual.
    pub(crate) is_fused: bool,
    /// Most adapters, and their largest rank.
    pub(crate) adapters: u64,
    pub(crate) adapter_rank: u64,
}

impl StepLimits {
    pub(crate) fn is_wide(&self) -> bool {
        self.tokens >= self.wide_from
    }

    /// Rows of runs of tokens of a step: one for each single token, and as many as there may be of
    /// others.
    pub(crate) fn runs_of(&self, key: StepKey) -> u64 {
        key.singles + key.runs.min(self.requests)
    }

    /// Where each part begins among the numbers of a step: at a multiple of 16 bytes, which kernels
    /// are faster for.
    pub(crate) fn parts(&self) -> InputParts {
        let each = |count: u64| count.next_multiple_of(4);
        let numbers = 4 + u64::from(self.adapters > 0);
        let rows = numbers * each(self.tokens);
        let settings = rows + each(self.rows);
        let runs = settings + each(self.rows * SETTINGS);
        let count = match self.slots {
            0 => 0,
            _ => 2 * self.requests,
        };
        let table = runs + each(count * RUN_NUMBERS);
        InputParts {
            rows,
            settings,
            runs,
            table,
            end: table + self.requests * self.blocks_each,
        }
    }

    /// Where a number of each token begins.
    pub(crate) fn part_of_tokens(&self, number: u64) -> u64 {
        number * self.tokens.next_multiple_of(4)
    }
}

/// Where the parts behind the tokens of a step begin among its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputParts {
    /// Tokens whose logits are computed.
    pub(crate) rows: u64,
    /// How a token is chosen by each of these.
    pub(crate) settings: u64,
    pub(crate) runs: u64,
    pub(crate) table: u64,
    pub(crate) end: u64,
}

/// Where the tokens of a step come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum TokenSource {
    /// All are known.
    #[default]
    Host,
    /// Single ones are those that the step before chose, in their order.
    Before,
    /// Single ones are some of those that the step before chose, by the numbers of their rows.
    BeforeByRow,
}

/// Numbers of tokens and of rows of logits that a step is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepKey {
    /// Tokens of requests that have one each, which come first.
    pub(crate) singles: u64,
    /// Tokens of requests that have several.
    pub(crate) runs: u64,
    /// Rows of logits.
    pub(crate) rows: u64,
    pub(crate) source: TokenSource,
    /// Whether tokens are chosen by the settings of their rows, else the most likely ones.
    pub(crate) is_sampled: bool,
    /// Whether a request of it has an adapter.
    pub(crate) has_adapters: bool,
}

impl StepKey {
    pub(crate) fn tokens(self) -> u64 {
        self.singles + self.runs
    }

    /// The key of its graph.
    pub(crate) fn graph(self) -> GraphKey {
        GraphKey {
            // Each is below 2^32, as the argument block has numbers of 32 bits.
            words: [
                self.singles << 32 | self.runs,
                self.rows << 4
                    | (self.source as u64) << 2
                    | u64::from(self.is_sampled) << 1
                    | u64::from(self.has_adapters),
            ],
            ..GraphKey::default()
        }
    }
}

/// What a step reads of its tokens, one after another in one block of memory: for each token
/// itself, its position, its sequence, its place in the cache, and its adapter where there may be
/// some; the numbers of the tokens with logits; the blocks of each sequence; and runs of tokens,
/// where layers have states.
#[derive(Debug)]
pub(crate) struct StepInputs {
    pub(crate) limits: StepLimits,
    pub(crate) values: Vec<i32>,
    /// Blocks of each sequence that are not uploaded, from its first one on.
    changed: Vec<usize>,
}

impl StepInputs {
    /// One in which every token is padding.
    pub(crate) fn new(limits: StepLimits) -> Self {
        let mut block = Self {
            values: vec![0; Self::len(&limits) as usize],
            changed: vec![0; limits.requests as usize],
            limits,
        };
        block.clear();
        block
    }

    pub(crate) fn len(limits: &StepLimits) -> u64 {
        limits.parts().end
    }

    /// Makes every token padding: it has no position, and a place behind the cache. The table
    /// stays, as most of it is of the next step too.
    pub(crate) fn clear(&mut self) {
        let limits = self.limits;
        let behind = i32::try_from(limits.blocks * limits.places).unwrap_or(i32::MAX);
        let table = limits.parts().table;
        self.values[..table as usize].fill(0);
        let mut set = |number: u64, value: i32| {
            let first = limits.part_of_tokens(number) as usize;
            self.values[first..first + limits.tokens as usize].fill(value);
        };
        set(1, -1);
        set(3, behind);
        if limits.adapters > 0 {
            set(ADAPTER, -1);
        }
    }

    fn place(&self, number: u64, at: usize) -> usize {
        self.limits.part_of_tokens(number) as usize + at
    }

    /// Sets a token of the step.
    pub(crate) fn set_token(&mut self, at: usize, token: u32, position: usize, sequence: usize) {
        let values = [token.cast_signed(), position as i32, sequence as i32];
        for (number, value) in (0..).zip(values) {
            let place = self.place(number, at);
            self.values[place] = value;
        }
    }

    /// Sets the adapter of a token.
    pub(crate) fn set_adapter(&mut self, at: usize, adapter: Option<u32>) {
        // There is none where there is no room for some.
        if let Some(adapter) = adapter {
            let place = self.place(ADAPTER, at);
            self.values[place] = adapter.cast_signed();
        }
    }

    /// Sets where a token's keys and values are stored, by its position and the blocks of its
    /// sequence.
    pub(crate) fn set_place(&mut self, at: usize, position: usize, blocks: &[u32]) {
        let places = self.limits.places as usize;
        let stored = blocks[position / places] * places as u32 + (position % places) as u32;
        let own = self.place(3, at);
        self.values[own] = stored.cast_signed();
    }

    /// Sets the token of a row of logits.
    pub(crate) fn set_row(&mut self, row: usize, token: i32) {
        let rows = self.limits.parts().rows;
        self.values[rows as usize + row] = token;
    }

    /// Sets how the token of a row of logits is chosen.
    pub(crate) fn set_settings(&mut self, row: usize, settings: [u32; SETTINGS as usize]) {
        let first = self.limits.parts().settings as usize + row * SETTINGS as usize;
        let own = &mut self.values[first..first + SETTINGS as usize];
        own.copy_from_slice(&settings.map(u32::cast_signed));
    }

    /// Sets the blocks of a sequence.
    pub(crate) fn set_blocks(&mut self, sequence: usize, blocks: &[u32]) {
        let each = self.limits.blocks_each as usize;
        let table = self.limits.parts().table;
        let first = table as usize + sequence * each;
        let row = self.values[first..first + each].iter_mut().zip(blocks);
        for (at, (to, own)) in row.enumerate() {
            if *to != own.cast_signed() {
                *to = own.cast_signed();
                self.changed[sequence] = self.changed[sequence].max(at + 1);
            }
        }
    }

    /// Numbers of the largest part that [`StepInputs::take_changed`] gives.
    pub(crate) fn largest_part(&self) -> usize {
        let table = self.limits.parts().table;
        table.max(self.limits.blocks_each) as usize
    }

    /// Has all of the table uploaded again.
    pub(crate) fn forget_uploaded(&mut self) {
        self.changed.fill(self.limits.blocks_each as usize);
    }

    /// Parts that are to be uploaded, and count as uploaded then: all before the table, and what
    /// has changed of its rows.
    pub(crate) fn take_changed(&mut self) -> Vec<Range<usize>> {
        let table = self.limits.parts().table;
        let (table, each) = (table as usize, self.limits.blocks_each as usize);
        let rows = self.changed.iter_mut().enumerate();
        let rows = rows.filter(|(_, changed)| **changed > 0);
        let rows = rows.map(|(row, changed)| {
            let first = table + row * each;
            first..first + std::mem::take(changed)
        });
        std::iter::once(0..table).chain(rows).collect()
    }

    /// Sets the runs of tokens. Rows behind them are of none, and begin where the last one ends.
    pub(crate) fn set_runs(&mut self, runs: &[TokenRun], key: StepKey) {
        let InputParts {
            runs: first, table, ..
        } = self.limits.parts();
        if self.limits.slots == 0 {
            return;
        }
        let last = runs.last().map_or(0, |it| it.first + it.count);
        let slot = |slot: Option<u32>| slot.map_or(-1, u32::cast_signed);
        let rows =
            self.values[first as usize..table as usize].chunks_exact_mut(RUN_NUMBERS as usize);
        for (at, row) in rows.take(self.limits.runs_of(key) as usize).enumerate() {
            let none = TokenRun {
                first: last,
                ..TokenRun::default()
            };
            let run = runs.get(at).copied().unwrap_or(none);
            let (mark, kept) = run.kept.unzip();
            row.copy_from_slice(&[
                run.first as i32,
                run.count as i32,
                slot(run.from),
                slot(run.to),
                mark.unwrap_or_default() as i32,
                slot(kept),
            ]);
        }
    }
}

/// Tokens of a step that follow one another, with the slots of their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenRun {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Where the state is read; none for one of zeros.
    pub(crate) from: Option<u32>,
    pub(crate) to: Option<u32>,
    /// A number of tokens, and the slot in which the state behind them is kept.
    pub(crate) kept: Option<(usize, u32)>,
}

/// Sizes of steps beyond which they are multiples of it: few sizes are compiled for, and little is
/// computed in vain.
const SIZE_STEP: u64 = 128;

/// Number of tokens for which a step with tokens of prompts is prepared: a power of two, or a
/// multiple of 128.
pub(crate) fn padded_all(count: usize) -> u64 {
    match count as u64 {
        0 => 0,
        count if count <= SIZE_STEP => count.next_power_of_two(),
        count => count.next_multiple_of(SIZE_STEP),
    }
}

/// Number of tokens for which a step is prepared: a power of two, or none.
pub(crate) fn padded(count: usize) -> u64 {
    match count {
        0 => 0,
        count => (count as u64).next_power_of_two(),
    }
}
