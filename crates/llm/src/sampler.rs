//! Choice of a token by its logits.
//!
//! Invariant: equal logits, settings and seeds give equal tokens.

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Divisor of logits; 0 takes the largest.
    pub temperature: f32,
    /// Number of tokens that are kept, the most likely ones; 0 for all.
    pub top_k: usize,
    /// Tokens are kept until their probabilities are that much together.
    pub top_p: f32,
    /// Tokens are kept whose probability is that part of the largest one.
    pub min_p: f32,
    /// Divisor of positive logits of tokens that stand among the last ones, and factor of negative
    /// ones; 1 for none.
    pub repeat_penalty: f32,
    /// Number of last tokens that the penalties are for.
    pub repeat_last: usize,
    /// What is taken from a logit for each time that the token stands among the last ones.
    pub frequency_penalty: f32,
    /// What is taken from a logit if the token stands among the last ones.
    pub presence_penalty: f32,
    /// Seed of the choices; `None` for a fresh one.
    pub seed: Option<u64>,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: None,
        }
    }
}

/// Distance of the seeds of neighbouring tokens: an odd number whose multiples are far apart.
const BETWEEN_SEEDS: u64 = 0x9e37_79b9_7f4a_7c15;

impl SamplerConfig {
    fn has_no_penalties(&self) -> bool {
        let all = (
            self.repeat_penalty,
            self.frequency_penalty,
            self.presence_penalty,
        );
        all == (1.0, 0.0, 0.0)
    }
}

/// A sampler of one request.
#[derive(Debug)]
pub(crate) struct TokenSampler {
    config: SamplerConfig,
    seed: u64,
}

/// The number of the largest; of NaN, none.
fn largest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (at, logit) in logits.iter().enumerate() {
        if *logit > logits[best] || logits[best].is_nan() {
            best = at;
        }
    }
    best
}

/// ln of the sum of e^x.
pub(crate) fn log_sum(logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - most).exp())
        .sum();
    most + sum.ln() as f32
}

/// The largest logits with their tokens, the largest first.
pub(crate) fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let all = (0..).zip(logits.iter().map(|logit| f64::from(*logit)));
    let mut all: Vec<(u32, f64)> = all.collect();
    largest_first(&mut all, count);
    let first = all.into_iter().take(count);
    first.map(|(token, logit)| (token, logit as f32)).collect()
}

impl TokenSampler {
    pub(crate) fn new(config: SamplerConfig) -> Self {
        Self {
            seed: config.seed.unwrap_or_else(|| fastrand::u64(..)),
            config,
        }
    }

    /// The number from 0 to 1 by which the token behind so many is chosen: it depends on nothing
    /// else, so that a token that is chosen again is the same.
    fn place(&self, before: usize) -> f64 {
        let number = (before as u64).wrapping_mul(BETWEEN_SEEDS);
        fastrand::Rng::with_seed(self.seed.wrapping_add(number)).f64()
    }

    /// Whether the token depends on logits and its place alone.
    pub(crate) fn is_plain(&self) -> bool {
        self.config.has_no_penalties()
    }

    /// How the token behind so many is chosen, as the op `choose_by_weight` reads it.
    pub(crate) fn settings(&self, before: usize) -> [u32; 6] {
        let config = &self.config;
        let place = self.place(before).to_bits();
        [
            config.temperature.to_bits(),
            u32::try_from(config.top_k).unwrap_or(u32::MAX),
            config.top_p.to_bits(),
            config.min_p.to_bits(),
            place as u32,
            (place >> 32) as u32,
        ]
    }

    /// Whether it takes the largest logit, whatever was before.
    pub(crate) fn takes_largest(&self) -> bool {
        self.config.temperature <= 0.0 && self.is_plain()
    }

    fn penalise(&self, logits: &mut [f32], before: &[u32]) {
        if self.config.has_no_penalties() {
            return;
        }
        let SamplerConfig {
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            repeat_last,
            ..
        } = self.config;
        let last = &before[before.len().saturating_sub(repeat_last)..];
        let mut sorted = last.to_vec();
        sorted.sort_unstable();
        for same in sorted.chunk_by(|a, b| a == b) {
            let Some(logit) = logits.get_mut(same[0] as usize) else {
                continue;
            };
            *logit = match *logit > 0.0 {
                true => *logit / repeat_penalty,
                false => *logit * repeat_penalty,
            };
            *logit -= same.len() as f32 * frequency_penalty + presence_penalty;
        }
    }

    /// Chooses a token; `before` are those that the penalties are for.
    pub(crate) fn choose(&self, logits: &mut [f32], before: &[u32]) -> u32 {
        self.penalise(logits, before);
        let SamplerConfig {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.config;
        if temperature <= 0.0 || logits.is_empty() {
            return largest(logits) as u32;
        }
        let most = logits[largest(logits)];
        // What overflows is as likely as all else that does.
        let weight = |logit: f32| match logit == most {
            true => 1.0,
            false => f64::exp(f64::from((logit - most) / temperature)),
        };
        let weights = logits.iter().map(|logit| weight(*logit));
        let weights = (0..)
            .zip(weights)
            .filter(|(_, it)| *it > 0.0 && *it >= f64::from(min_p));
        let mut all: Vec<(u32, f64)> = weights.collect();
        if top_k > 0 {
            largest_first(&mut all, top_k);
            all.truncate(top_k);
        }
        if top_p < 1.0 {
            let wanted = f64::from(top_p) * total(&all);
            let mut sorted = FIRST_SORTED.min(all.len());
            loop {
                largest_first(&mut all, sorted);
                let mut sum = 0.0;
                let within = all[..sorted].iter().position(|(_, weight)| {
                    sum += weight;
                    sum >= wanted
                });
                if let Some(at) = within {
                    all.truncate(at + 1);
                }
                if within.is_some() || sorted == all.len() {
                    break;
                }
                sorted = all.len();
            }
        }
        // In the order of tokens, as the device chooses.
        all.sort_unstable_by_key(|(token, _)| *token);
        let mut left = self.place(before.len()) * total(&all);
        for (token, weight) in &all {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        all.last().map_or(0, |(token, _)| *token)
    }
}

/// Tokens that are sorted before it is known whether they suffice.
const FIRST_SORTED: usize = 256;

fn total(all: &[(u32, f64)]) -> f64 {
    all.iter().map(|(_, weight)| weight).sum()
}

/// Brings so many of the largest numbers to the front, in order; of equal ones the first token.
fn largest_first(all: &mut [(u32, f64)], count: usize) {
    let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < all.len() {
        all.select_nth_unstable_by(count, order);
    }
    let count = count.min(all.len());
    all[..count].sort_unstable_by(order);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(config: SamplerConfig, logits: &[f32]) -> Vec<u32> {
        let sampler = TokenSampler::new(config);
        let before = [0; 200];
        let mut all: Vec<u32> = (0..200)
            .map(|at| sampler.choose(&mut logits.to_vec(), &before[..at]))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn warm() -> SamplerConfig {
        SamplerConfig {
            temperature: 1.0,
            seed: Some(3),
            ..SamplerConfig::default()
        }
    }

    #[test]
    fn greedy_takes_the_first_largest_and_no_nan() {
        let sampler = TokenSampler::new(SamplerConfig::default());
        assert_eq!(sampler.choose(&mut [f32::NAN, 1.0, 2.0, 2.0], &[]), 2);
        assert_eq!(sampler.choose(&mut [f32::NEG_INFINITY; 3], &[]), 0);
    }

    #[test]
    fn filters_keep_the_most_likely() {
        let logits = [1.0, 3.0, 2.9, 0.5];
        let only = |config| chosen(config, &logits);
        assert_eq!(only(SamplerConfig { top_k: 2, ..warm() }), [1, 2]);
        assert_eq!(
            only(SamplerConfig {
                top_p: 0.4,
                ..warm()
            }),
            [1]
        );
        assert_eq!(
            only(SamplerConfig {
                top_p: 0.6,
                ..warm()
            }),
            [1, 2]
        );
        assert_eq!(
            only(SamplerConfig {
                min_p: 0.5,
                ..warm()
            }),
            [1, 2]
        );
        assert_eq!(only(warm()).len(), 4);
    }

    #[test]
    fn overflown_logits_are_the_only_candidates() {
        let logits = [1.0, f32::INFINITY, 5.0, f32::INFINITY, f32::NEG_INFINITY];
        assert_eq!(chosen(warm(), &logits), [1, 3]);
        let least = [f32::NEG_INFINITY, -3e38, f32::NEG_INFINITY];
        assert_eq!(chosen(warm(), &least), [1]);
    }

    /// What the parts that are sorted give is what the whole order gives.
    #[test]
    fn long_vocabularies_are_cut_where_their_whole_order_says() {
        let mut random = fercuda_trials::rng();
        for _ in 0..20 {
            let wide = random.f32() * 3.0;
            let logits: Vec<f32> = (0..2000).map(|_| random.f32() * wide).collect();
            let top_p = random.f32();
            let (top_k, min_p) = (random.usize(..900), random.f32() / 4.0);
            let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            order.sort_by(|a, b| b.1.total_cmp(&a.1));
            let weight = |logit: f32| f64::exp(f64::from(logit - order[0].1));
            let mut kept: Vec<(u32, f64)> = order
                .iter()
                .map(|(token, logit)| (*token, weight(*logit)))
                .collect();
            kept.retain(|(_, weight)| *weight >= f64::from(min_p));
            if top_k > 0 {
                kept.truncate(top_k);
            }
            let wanted = total(&kept) * f64::from(top_p);
            let mut sum = 0.0;
            let least = kept.iter().position(|(_, weight)| {
                sum += weight;
                sum >= wanted * (1.0 + 1e-9)
            });
            let allowed: Vec<u32> = kept[..least.map_or(kept.len(), |at| at + 1)]
                .iter()
                .map(|(token, _)| *token)
                .collect();
            let config = SamplerConfig {
                top_k,
                top_p,
                min_p,
                ..warm()
            };
            let seen = chosen(config, &logits);
            assert!(seen.iter().all(|token| allowed.contains(token)));
            assert!(seen.len() > 1 || allowed.len() < 50, "{}", allowed.len());
        }
    }

    #[test]
    fn seeds_repeat_and_penalties_move() {
        let logits = [1.0; 50];
        let run = |seed| {
            let config = SamplerConfig {
                seed: Some(seed),
                ..warm()
            };
            let sampler = TokenSampler::new(config);
            let before = [0; 20];
            let all = (0..20).map(|at| sampler.choose(&mut logits.to_vec(), &before[..at]));
            all.collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let config = SamplerConfig {
            presence_penalty: 1.0,
            ..SamplerConfig::default()
        };
        let sampler = TokenSampler::new(config);
        assert_eq!(sampler.choose(&mut [2.0, 1.5], &[0]), 1);
        assert_eq!(sampler.choose(&mut [2.0, 0.5], &[0, 9]), 0);
    }
}
