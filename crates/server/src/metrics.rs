//! Counters and histograms of a server, and their text for Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::token_engine::{EngineLoad, EngineMemory};

/// Upper ends of buckets of times until a first token and of whole requests, in milliseconds.
const LONG: &[u64] = &[
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000, 20_000, 40_000,
    80_000, 160_000, 640_000,
];
/// Those of times between tokens.
const SHORT: &[u64] = &[
    1, 2, 5, 10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500, 5000, 10_000,
];

/// Numbers of durations, by upper ends of buckets.
#[derive(Debug)]
pub(crate) struct DurationHistogram {
    ends: &'static [u64],
    /// One more than there are ends.
    counts: Vec<AtomicU64>,
    microseconds: AtomicU64,
}

impl DurationHistogram {
    fn new(ends: &'static [u64]) -> DurationHistogram {
        DurationHistogram {
            ends,
            counts: (0..=ends.len()).map(|_| AtomicU64::new(0)).collect(),
            microseconds: AtomicU64::new(0),
        }
    }

    pub(crate) fn observe(&self, duration: Duration) {
        let all = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.ends.partition_point(|end| end * 1000 < all);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.microseconds.fetch_add(all, Relaxed);
    }

    /// The mean in seconds; 0 if there is none.
    fn mean(&self) -> f64 {
        let count: u64 = self.counts.iter().map(|it| it.load(Relaxed)).sum();
        self.microseconds.load(Relaxed) as f64 / 1e6 / count.max(1) as f64
    }

    fn write(&self, out: &mut String, name: &str, label: &str) {
        header(out, name, "histogram");
        let mut below = 0;
        let ends = self.ends.iter().map(|end| (*end as f64 / 1e3).to_string());
        for (count, end) in self.counts.iter().zip(ends.chain(["+Inf".to_owned()])) {
            below += count.load(Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{label},le=\"{end}\"}} {below}");
        }
        let sum = self.microseconds.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum{{{label}}} {sum}");
        let _ = writeln!(out, "{name}_count{{{label}}} {below}");
    }
}

/// What a server counts.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    running: AtomicUsize,
    waiting: AtomicUsize,
    free_blocks: AtomicUsize,
    blocks: AtomicUsize,
    kept_blocks: AtomicUsize,
    memory: Mutex<Option<EngineMemory>>,
    has_failed: AtomicBool,
    guessed_tokens: AtomicU64,
    right_guesses: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    /// Requests that ended by an end token or a text that stops, and by length.
    pub(crate) stopped: AtomicU64,
    pub(crate) cut: AtomicU64,
    /// Requests whose client has gone, or that took too long.
    pub(crate) aborted: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Requests that found the queue full.
    pub(crate) refused: AtomicU64,
    pub(crate) first_token: DurationHistogram,
    pub(crate) between_tokens: DurationHistogram,
    pub(crate) whole: DurationHistogram,
}

fn header(out: &mut String, name: &str, kind: &str) {
    let _ = writeln!(out, "# TYPE {name} {kind}");
}

impl ServerMetrics {
    pub(crate) fn new() -> ServerMetrics {
        let zero = || AtomicU64::new(0);
        let none = || AtomicUsize::new(0);
        ServerMetrics {
            running: none(),
            waiting: none(),
            free_blocks: none(),
            blocks: none(),
            kept_blocks: none(),
            memory: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            guessed_tokens: zero(),
            right_guesses: zero(),
            prompt_tokens: zero(),
            cached_tokens: zero(),
            generated_tokens: zero(),
            stopped: zero(),
            cut: zero(),
            aborted: zero(),
            failed: zero(),
            refused: zero(),
            first_token: DurationHistogram::new(LONG),
            between_tokens: DurationHistogram::new(SHORT),
            whole: DurationHistogram::new(LONG),
        }
    }

    /// Publishes how full the engine is.
    pub(crate) fn set_load(&self, load: EngineLoad) {
        self.running.store(load.running, Relaxed);
        self.waiting.store(load.waiting, Relaxed);
        self.free_blocks.store(load.free_blocks, Relaxed);
        self.blocks.store(load.blocks, Relaxed);
        self.kept_blocks.store(load.kept_blocks, Relaxed);
        self.guessed_tokens.store(load.guessed_tokens, Relaxed);
        self.right_guesses.store(load.right_guesses, Relaxed);
    }

    /// Publishes the memory of the device.
    pub(crate) fn set_memory(&self, memory: Option<EngineMemory>) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Requests, blocks of the cache and memory, as the page shows them.
    pub(crate) fn pool(&self) -> Value {
        let count = |it: &AtomicUsize| it.load(Relaxed);
        let (blocks, free, kept) = (&self.blocks, &self.free_blocks, &self.kept_blocks);
        let memory = *self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "running": count(&self.running), "waiting": count(&self.waiting),
            "generated_tokens": self.generated_tokens.load(Relaxed),
            "blocks": { "all": count(blocks), "free": count(free), "kept": count(kept) },
            "memory": memory.map(|it| json!({
                "total_bytes": it.total, "free_bytes": it.free, "held_bytes": it.held,
                "block_bytes": it.block,
            })),
        })
    }

    /// Publishes whether the last step has failed.
    pub(crate) fn set_failed(&self, has_failed: bool) {
        self.has_failed.store(has_failed, Relaxed);
    }

    /// Whether the last step has not failed.
    pub(crate) fn is_healthy(&self) -> bool {
        !self.has_failed.load(Relaxed)
    }

    /// Seconds after which a request that found the queue full may find a place.
    pub(crate) fn seconds_to_retry(&self) -> u64 {
        (self.whole.mean().ceil() as u64).clamp(1, 60)
    }

    /// All of it, with vLLM's names.
    pub(crate) fn text(&self, model: &str) -> String {
        let escaped = model.replace('\\', "\\\\").replace('"', "\\\"");
        let label = format!("model_name=\"{}\"", escaped.replace('\n', "\\n"));
        let mut out = String::new();
        let blocks = self.blocks.load(Relaxed);
        let used = blocks.saturating_sub(self.free_blocks.load(Relaxed));
        let use_of_cache = used as f64 / blocks.max(1) as f64;
        let gauges = [
            (
                "vllm:num_requests_running",
                self.running.load(Relaxed) as f64,
            ),
            (
                "vllm:num_requests_waiting",
                self.waiting.load(Relaxed) as f64,
            ),
            ("vllm:kv_cache_usage_perc", use_of_cache),
            ("vllm:gpu_cache_usage_perc", use_of_cache),
        ];
        for (name, value) in gauges {
            header(&mut out, name, "gauge");
            let _ = writeln!(out, "{name}{{{label}}} {value}");
        }
        let counters = [
            ("vllm:prompt_tokens_total", &self.prompt_tokens),
            ("vllm:prefix_cache_queries_total", &self.prompt_tokens),
            ("vllm:prefix_cache_hits_total", &self.cached_tokens),
            ("vllm:generation_tokens_total", &self.generated_tokens),
            (
                "vllm:spec_decode_num_draft_tokens_total",
                &self.guessed_tokens,
            ),
            (
                "vllm:spec_decode_num_accepted_tokens_total",
                &self.right_guesses,
            ),
            ("fercuda:requests_refused_total", &self.refused),
            ("fercuda:requests_failed_total", &self.failed),
        ];
        for (name, value) in counters {
            header(&mut out, name, "counter");
            let _ = writeln!(out, "{name}{{{label}}} {}", value.load(Relaxed));
        }
        let name = "vllm:request_success_total";
        header(&mut out, name, "counter");
        let reasons = [
            ("stop", &self.stopped),
            ("length", &self.cut),
            ("abort", &self.aborted),
        ];
        for (reason, value) in reasons {
            let value = value.load(Relaxed);
            let _ = writeln!(
                out,
                "{name}{{{label},finished_reason=\"{reason}\"}} {value}"
            );
        }
        let histograms = [
            ("vllm:time_to_first_token_seconds", &self.first_token),
            ("vllm:inter_token_latency_seconds", &self.between_tokens),
            ("vllm:time_per_output_token_seconds", &self.between_tokens),
            ("vllm:e2e_request_latency_seconds", &self.whole),
        ];
        for (name, histogram) in histograms {
            histogram.write(&mut out, name, &label);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ServerMetrics;

    #[test]
    fn buckets_count_what_is_at_most_their_end() {
        let metrics = ServerMetrics::new();
        for milliseconds in [1, 2, 700_000] {
            let duration = Duration::from_millis(milliseconds);
            metrics.first_token.observe(duration);
        }
        let text = metrics.text("a \"b\"");
        let line = |end: &str, count: u32| {
            let name = "vllm:time_to_first_token_seconds_bucket";
            format!("{name}{{model_name=\"a \\\"b\\\"\",le=\"{end}\"}} {count}\n")
        };
        for (end, count) in [("0.001", 1), ("0.005", 2), ("640", 2), ("+Inf", 3)] {
            assert!(text.contains(&line(end, count)), "{end}: {text}");
        }
        assert!(text.contains("_sum{model_name=\"a \\\"b\\\"\"} 700.003\n"));
        assert_eq!(metrics.seconds_to_retry(), 1);
        metrics.whole.observe(Duration::from_millis(2500));
        assert_eq!(metrics.seconds_to_retry(), 3);
    }
}
