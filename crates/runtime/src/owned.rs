//! Resources that a session owns besides its buffers: graph caches, compiled expressions and
//! dispatchers.
//!
//! Invariants: captures use separate streams of the session, never the one that orders its work,
//! so no work of another thread gets into a graph. Graphs are destroyed with the session, even if
//! handles to them remain. Elsewhere: the cache itself (`graphs`), the compiler (`fercuda_jit`),
//! starting a dispatcher (`resident`).

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use fercuda_cuda::Stream;
use fercuda_jit::{BoundArg, CompiledExpr, Compiler, ExprGraph as Expression};
use fercuda_tensor::Layout;

use crate::dispatcher::TaskQueue;
use crate::error::{Error, Result};
use crate::graphs::{
    Budget, GraphCache, GraphStats, Key, RecordOptions, Recorded, Recording, Timing,
};
use crate::runtime::lock;
use crate::session::{BufferEntry, BufferId, Regime, Session};

/// Resources that are torn down with their session.
#[derive(Default)]
pub(crate) struct SessionResources {
    resources: Mutex<Vec<Weak<dyn TearDown>>>,
    compiler: Mutex<Option<Arc<Compiler>>>,
    dispatchers: Mutex<Vec<Weak<TaskQueue>>>,
}

/// A resource that is torn down with its session, even if handles to it remain.
pub(crate) trait TearDown: Send + Sync {
    fn tear_down(&self);
}

impl<K: Key + Send + Sync> TearDown for GraphCache<K> {
    fn tear_down(&self) {
        GraphCache::end(self);
    }
}

impl fmt::Debug for SessionResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionResources").finish_non_exhaustive()
    }
}

impl SessionResources {
    pub(crate) fn keep_until_end(&self, it: Weak<dyn TearDown>) {
        let mut all = lock(&self.resources);
        all.retain(|it| it.strong_count() > 0);
        all.push(it);
    }

    pub(crate) fn keep(&self, dispatcher: &Arc<TaskQueue>) {
        let mut all = lock(&self.dispatchers);
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(dispatcher));
    }

    /// Requests the dispatchers to drain: to run the submitted tasks, and exit.
    pub(crate) fn request_drain(&self) {
        for dispatcher in lock(&self.dispatchers).iter().filter_map(Weak::upgrade) {
            dispatcher.request_drain();
        }
    }

    /// Takes the live dispatchers, for the session's teardown.
    pub(crate) fn take_dispatchers(&self) -> Vec<Arc<TaskQueue>> {
        let all = std::mem::take(&mut *lock(&self.dispatchers));
        all.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn tear_down(&self) {
        let resources = std::mem::take(&mut *lock(&self.resources));
        let resources: Vec<Arc<dyn TearDown>> =
            resources.iter().filter_map(Weak::upgrade).collect();
        resources.iter().for_each(|it| it.tear_down());
        let compiler = lock(&self.compiler).take();
        drop(compiler);
    }
}

/// Graph cache of a session; its graphs are replayed in the session's order. The graphs are
/// destroyed with the session, or before, when this is dropped, behind their last replay.
///
/// All calls may be made from any thread.
#[derive(Debug)]
pub struct Graphs<K: Key> {
    session: Session,
    cache: Arc<GraphCache<K>>,
    /// Idle streams for captures.
    spare: Mutex<Vec<Stream>>,
}

impl<K: Key + Send + Sync + 'static> Graphs<K> {
    /// Captures the work that `body` submits to the recording's stream, and keeps the graph under
    /// `key`. In `body` the session is the tenant; its memory, by [`Session::memory`], and kernels,
    /// by [`fercuda_cuda::Launch`], are used as in any stream. If `body` fails or panics, the
    /// capture is discarded, and an earlier graph under the key is kept.
    ///
    /// # Errors
    /// Those of `body`; [`Error::Graph`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn record<R>(
        &self,
        key: K,
        options: RecordOptions,
        body: impl FnOnce(&Recording<'_, K>) -> Result<R>,
    ) -> Result<(R, Recorded)> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        core.as_tenant(|| {
            let spare = lock(&self.spare).pop();
            let stream = match spare {
                Some(stream) => stream,
                None => Stream::new(core.context())?,
            };
            let recorded = self.cache.record(key, &stream, options, body)?;
            lock(&self.spare).push(stream);
            Ok(recorded)
        })
    }

    /// Replays the graph under `key` behind the session's work; returns whether there is one.
    ///
    /// # Errors
    /// [`Error::Graph`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn replay(&self, key: &K) -> Result<bool> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        if core.is_idle() {
            return core.as_tenant(|| Ok(self.cache.replay(key, core.stream())?));
        }
        let (cache, key) = (self.cache.clone(), key.clone());
        core.in_order(move |stream| Ok(cache.replay(&key, stream)?))
    }

    /// As [`Graphs::replay`], with its duration; `None` if there is no graph.
    ///
    /// # Errors
    /// As there.
    pub fn replay_timed(&self, key: &K) -> Result<Option<Timing>> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        let (cache, key) = (self.cache.clone(), key.clone());
        core.in_order(move |stream| Ok(cache.replay_timed(&key, stream)?))
    }

    /// Drops the graph under `key`, and a capture in progress for it; returns whether there was a
    /// graph.
    pub fn invalidate(&self, key: &K) -> bool {
        self.cache.invalidate(key)
    }

    /// Drops all graphs; returns their number.
    pub fn invalidate_all(&self) -> usize {
        self.cache.invalidate_all()
    }

    /// Drops all graphs of a generation; returns their number.
    pub fn invalidate_generation(&self, generation: u64) -> usize {
        self.cache.invalidate_generation(generation)
    }

    /// Whether there is a graph under `key`.
    pub fn contains(&self, key: &K) -> bool {
        self.cache.contains(key)
    }

    /// Counters of the cache.
    pub fn stats(&self) -> GraphStats {
        self.cache.stats()
    }
}

impl Session {
    /// Creates a graph cache of the session: captured allocations count within the session's limit,
    /// besides the budget.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn graphs<K: Key + Send + Sync + 'static>(&self, budget: Budget) -> Result<Graphs<K>> {
        let core = &self.core;
        let cache =
            core.as_tenant(|| GraphCache::of_account(core.context(), budget, core.account()));
        let cache = Arc::new(cache?);
        // Under the table's lock, so that the session cannot end in between.
        core.with(|_| {
            core.owned().keep_until_end(Arc::downgrade(&cache) as _);
            Ok(())
        })?;
        Ok(Graphs {
            session: self.clone(),
            cache,
            spare: Mutex::default(),
        })
    }

    /// Compiles an expression, or finds it in memory or on disk: for captures, and for inspection.
    /// [`Session::evaluate`] does this itself.
    ///
    /// # Errors
    /// [`Error::Expression`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn compile(&self, expression: &Expression) -> Result<CompiledExpr> {
        let core = &self.core;
        let compiler = core.with(|_| {
            let mut compiler = lock(&core.owned().compiler);
            Ok(match &*compiler {
                Some(compiler) => compiler.clone(),
                None => compiler
                    .insert(Arc::new(Compiler::new(core.context())?))
                    .clone(),
            })
        })?;
        Ok(core.as_tenant(|| compiler.compile(expression))?)
    }

    /// Evaluates an expression over buffers, bound in the order in which its inputs were named,
    /// behind the session's work; into new buffers of the pool, one for each output in the order of
    /// their names.
    ///
    /// # Errors
    /// [`Error::Operand`] if a buffer does not have the input's type, shape and strides;
    /// [`Error::Expression`]; [`Error::Stale`]; [`Error::Limit`]; [`Error::OutOfMemory`];
    /// [`Error::Ended`]; [`Error::Forked`].
    pub fn evaluate(&self, expression: &Expression, inputs: &[BufferId]) -> Result<Vec<BufferId>> {
        // Invalid inputs are reported before outputs are allocated.
        self.operands("input", expression.inputs(), inputs)?;
        let layouts: Vec<Layout> = expression.outputs().map(|(_, layout)| *layout).collect();
        let mut outputs = Vec::with_capacity(layouts.len());
        let made = layouts.into_iter().try_for_each(|layout| {
            outputs.push(self.alloc(layout, Regime::Pool)?);
            Ok(())
        });
        let done = made.and_then(|()| self.evaluate_into(expression, inputs, &outputs));
        if done.is_err() {
            for output in outputs.drain(..) {
                // If the session has ended meanwhile, that is the error reported.
                drop(self.free(output));
            }
        }
        done.map(|()| outputs)
    }

    /// Evaluates an expression into existing buffers. An output may be an input only if each
    /// element is computed from the element at the same place.
    ///
    /// # Errors
    /// As for [`Session::evaluate`].
    pub fn evaluate_into(
        &self,
        expression: &Expression,
        inputs: &[BufferId],
        outputs: &[BufferId],
    ) -> Result<()> {
        let ready = self.prepare(expression, inputs, outputs)?;
        self.core.in_order(move |stream| ready.run(stream))
    }

    /// Prepares an evaluation without running it: for captures.
    ///
    /// # Errors
    /// As for [`Session::evaluate`], except those of running it.
    pub fn prepare(
        &self,
        expression: &Expression,
        inputs: &[BufferId],
        outputs: &[BufferId],
    ) -> Result<Evaluation> {
        Ok(Evaluation {
            inputs: self.operands("input", expression.inputs(), inputs)?,
            outputs: self.operands("output", expression.outputs(), outputs)?,
            compiled: self.compile(expression)?,
        })
    }

    /// Resolves the buffers of an expression's inputs or outputs.
    fn operands<'e>(
        &self,
        what: &'static str,
        named: impl ExactSizeIterator<Item = (&'e str, &'e Layout)>,
        ids: &[BufferId],
    ) -> Result<Vec<BufferEntry>> {
        if named.len() != ids.len() {
            let (wanted, given) = (named.len(), ids.len());
            return Err(fercuda_jit::Error::Count {
                what,
                wanted,
                given,
            }
            .into());
        }
        let find = |((name, layout), id): ((&str, &Layout), &BufferId)| {
            let entry = self.core.entry(*id)?;
            if entry.layout != *layout {
                return Err(Error::Operand {
                    what,
                    name: name.to_owned(),
                    layout: Box::new(*layout),
                    id: id.to_string(),
                    given: Box::new(entry.layout),
                });
            }
            Ok(entry)
        };
        named.zip(ids).map(find).collect()
    }
}

/// A compiled expression with its buffers, which it retains ([`Session::prepare`]).
#[derive(Debug)]
pub struct Evaluation {
    compiled: CompiledExpr,
    inputs: Vec<BufferEntry>,
    outputs: Vec<BufferEntry>,
}

impl Evaluation {
    /// Captures the evaluation; memory between its kernels belongs to the graph.
    ///
    /// # Errors
    /// [`Error::Graph`]; those of [`Evaluation::run`].
    pub fn record<K: Key>(&self, recording: &Recording<'_, K>) -> Result<()> {
        let bytes = self.compiled.program().scratch_bytes;
        if bytes == 0 {
            return self.run(recording.stream());
        }
        let inputs: Vec<BoundArg<'_>> = self.inputs.iter().map(bound).collect();
        let outputs: Vec<BoundArg<'_>> = self.outputs.iter().map(bound).collect();
        let scratch = recording.alloc::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let (stream, scratch) = (recording.stream(), BoundArg::of(&*scratch));
        Ok(self.compiled.run_with(stream, &inputs, &outputs, scratch)?)
    }

    /// Queues the evaluation in a stream of the session's context.
    ///
    /// # Errors
    /// [`Error::Expression`]; [`Error::Cuda`].
    pub fn run(&self, stream: &Stream) -> Result<()> {
        let inputs: Vec<BoundArg<'_>> = self.inputs.iter().map(bound).collect();
        let outputs: Vec<BoundArg<'_>> = self.outputs.iter().map(bound).collect();
        Ok(self.compiled.run(stream, &inputs, &outputs)?)
    }
}

fn bound(entry: &BufferEntry) -> BoundArg<'_> {
    BoundArg::of(&entry.memory.buffer).first_at(entry.first)
}
