//! Copies between a session's buffers, and between them and the host.

use std::sync::Arc;

use fercuda_cuda::Stream;
use fercuda_tensor::{Dtype, Layout};

use super::entry::{BufferEntry, BufferId, Regime, copies, copy_runs, get, granule, overlap, put};
use super::owner::Session;
use super::values::BufferElement;
use crate::contiguous_runs::ContiguousRuns;
use crate::error::{Error, Result};
use crate::jobs::Job;

impl Session {
    /// Allocates a buffer of the pool with this shape and these values. Waits for the copy.
    ///
    /// # Errors
    /// As for [`Session::alloc`] and [`Session::upload`].
    pub fn buffer<T: BufferElement>(&self, shape: &[u64], values: &[T]) -> Result<BufferId> {
        let layout = Layout::contiguous(T::DTYPE, shape)?;
        let id = self.alloc(layout, Regime::Pool)?;
        let done = self.upload(id, values);
        if done.is_err() {
            self.free(id)?;
        }
        done.map(|()| id)
    }

    /// Copies values into a buffer, in the order of its elements. Waits for the copy.
    ///
    /// # Errors
    /// [`Error::Type`]; [`Error::Length`]; [`Error::Overlap`]; [`Error::Strewn`];
    /// [`Error::Stale`]; [`Error::Cuda`] with the first error of the session's work.
    pub fn upload<T: BufferElement>(&self, id: BufferId, values: &[T]) -> Result<()> {
        self.check_type::<T>("upload to", id)?;
        self.upload_bytes(id, bytemuck::cast_slice(values))
    }

    /// As [`Session::upload`], with the elements' bytes, of whatever type.
    ///
    /// # Errors
    /// As for [`Session::upload`]; [`Error::NotABool`].
    pub fn upload_bytes(&self, id: BufferId, bytes: &[u8]) -> Result<()> {
        let entry = self.target("upload to", id, bytes)?;
        if self.core.is_idle() {
            return self
                .core
                .as_tenant(|| put(&entry, bytes, &self.core.stream));
        }
        self.upload_job(entry, bytes.to_vec())?.wait().map(drop)
    }

    /// As [`Session::upload_bytes`], as a job, which owns the values and returns them.
    ///
    /// # Errors
    /// As for [`Session::upload`]; errors of the work are reported by the job.
    pub fn upload_async(&self, id: BufferId, bytes: Vec<u8>) -> Result<Job<Vec<u8>>> {
        let entry = self.target("upload to", id, &bytes)?;
        self.upload_job(entry, bytes)
    }

    fn upload_job(&self, entry: BufferEntry, bytes: Vec<u8>) -> Result<Job<Vec<u8>>> {
        let work = move |stream: &Stream| {
            if entry.layout.is_contiguous() {
                let mut part = granule(&entry, 0, bytes.len() as u64)?;
                let transfer = part.as_slice_mut().upload(bytes, stream)?;
                return Ok((Some(transfer), Vec::new()));
            }
            put(&entry, &bytes, stream)?;
            Ok((None, bytes))
        };
        self.core.submit(work, |(transfer, bytes)| match transfer {
            Some(transfer) => Ok(transfer.wait()?),
            None => Ok(bytes),
        })
    }

    /// Copies a buffer's values to the host, in the order of its elements. Waits for the session's
    /// work.
    ///
    /// # Errors
    /// [`Error::Type`]; [`Error::Strewn`]; [`Error::Stale`]; [`Error::Cuda`] with the
    /// first error of the session's work.
    pub fn download<T: BufferElement>(&self, id: BufferId) -> Result<Vec<T>> {
        self.check_type::<T>("download", id)?;
        let bytes = self.download_bytes(id)?;
        let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
        Ok(values)
    }

    /// As [`Session::download`], as bytes, of whatever type.
    ///
    /// # Errors
    /// As for [`Session::download`].
    pub fn download_bytes(&self, id: BufferId) -> Result<Vec<u8>> {
        let entry = self.core.entry(id)?;
        copies(&entry.layout, &entry.layout)?;
        self.core.in_order(move |stream| get(&entry, stream))
    }

    /// As [`Session::download_bytes`], as a job, which returns the bytes.
    ///
    /// # Errors
    /// As for [`Session::download`]; errors of the work are reported by the job.
    pub fn download_async(&self, id: BufferId) -> Result<Job<Vec<u8>>> {
        let entry = self.core.entry(id)?;
        copies(&entry.layout, &entry.layout)?;
        let work = move |stream: &Stream| {
            if entry.layout.is_contiguous() {
                let part = granule(&entry, 0, entry.layout.bytes())?;
                let host = vec![0; part.len()];
                let transfer = part.as_slice().download(host, stream)?;
                return Ok((Some(transfer), Vec::new()));
            }
            Ok((None, get(&entry, stream)?))
        };
        self.core.submit(work, |(transfer, bytes)| match transfer {
            Some(transfer) => Ok(transfer.wait()?),
            None => Ok(bytes),
        })
    }

    /// Queues a copy of a buffer of `from`, which may be this session or one of another device. It
    /// is ordered behind the work of both sessions, and before later work of both. Does not wait
    /// for the device, but for jobs that wait on the host.
    ///
    /// # Errors
    /// [`Error::Unlike`]; [`Error::Overlap`]; [`Error::Strewn`]; [`Error::Stale`];
    /// [`Error::Ended`]; [`Error::Cuda`].
    pub fn copy(&self, to: BufferId, from: &Session, source: BufferId) -> Result<()> {
        let (target, source) = (self.core.entry(to)?, from.core.entry(source)?);
        let like = |entry: &BufferEntry| (entry.layout.dtype(), entry.layout.shape().to_vec());
        if like(&target) != like(&source) {
            let ((to, to_shape), (from, from_shape)) = (like(&target), like(&source));
            return Err(Error::Unlike {
                from,
                from_shape,
                to,
                to_shape,
            });
        }
        if target.layout.may_overlap() {
            return Err(overlap("copy", &target.layout));
        }
        let runs = copies(&target.layout, &source.layout)?;
        if Arc::ptr_eq(&target.memory, &source.memory) {
            return self.copy_within(&target, &source, &runs);
        }
        let other = from.core.clone();
        if Arc::ptr_eq(&other, &self.core) {
            return self
                .core
                .in_order(move |stream| copy_runs(&target, &source, &runs, stream));
        }
        // Behind earlier work of the other session, also if that waits on the host.
        let given = other.in_order(|stream| Ok(stream.record()?))?;
        self.core.in_order(move |stream| {
            stream.wait_for(&given)?;
            copy_runs(&target, &source, &runs, stream)?;
            // Later work of the other session comes behind the copy.
            Ok(other.stream.wait_for(&stream.record()?)?)
        })
    }

    /// Copies between two parts of one memory, through a temporary buffer, as they may overlap.
    fn copy_within(
        &self,
        target: &BufferEntry,
        source: &BufferEntry,
        runs: &ContiguousRuns,
    ) -> Result<()> {
        let between = self.core.memory(source.layout.bytes(), Regime::Pool)?;
        let (target, source, runs) = (target.clone(), source.clone(), runs.clone());
        self.core.in_order(move |stream| {
            let starts = (0..).map(|number| (number * runs.bytes) as usize);
            let len = runs.bytes as usize;
            for ((_, from), at) in runs.begins().zip(starts.clone()) {
                let mut into = between.buffer.part::<u8>(at, len)?;
                into.copy_from(granule(&source, from, runs.bytes)?.as_slice(), stream)?;
            }
            for ((to, _), at) in runs.begins().zip(starts) {
                let part = between.buffer.part::<u8>(at, len)?;
                let mut into = granule(&target, to, runs.bytes)?;
                into.copy_from(part.as_slice(), stream)?;
            }
            Ok(())
        })
    }

    /// Queues a fill of all bytes of a buffer with `byte`.
    ///
    /// # Errors
    /// [`Error::Strewn`]; [`Error::Stale`]; [`Error::Ended`]; [`Error::Cuda`].
    pub fn fill_bytes(&self, id: BufferId, byte: u8) -> Result<()> {
        let entry = self.core.entry(id)?;
        let runs = copies(&entry.layout, &entry.layout)?;
        self.core.in_order(move |stream| {
            for (at, _) in runs.begins() {
                granule(&entry, at, runs.bytes)?.fill_bytes(byte, stream)?;
            }
            Ok(())
        })
    }

    fn check_type<T: BufferElement>(&self, doing: &'static str, id: BufferId) -> Result<()> {
        let dtype = self.core.entry(id)?.layout.dtype();
        if dtype != T::DTYPE {
            return Err(Error::Type {
                doing,
                id: id.to_string(),
                dtype,
                given: T::DTYPE,
            });
        }
        Ok(())
    }

    /// Looks up a buffer that these bytes can be written to.
    fn target(&self, doing: &'static str, id: BufferId, bytes: &[u8]) -> Result<BufferEntry> {
        let entry = self.core.entry(id)?;
        let layout = &entry.layout;
        if layout.bytes() != bytes.len() as u64 {
            return Err(Error::Length {
                doing,
                id: id.to_string(),
                given: bytes.len() as u64,
                expected: layout.bytes(),
                shape: layout.shape().to_vec(),
                dtype: layout.dtype(),
            });
        }
        if layout.may_overlap() {
            return Err(overlap(doing, layout));
        }
        if layout.dtype() == Dtype::Bool
            && let Some(at) = bytes.iter().position(|byte| *byte > 1)
        {
            let value = bytes[at];
            return Err(Error::NotABool { at, value });
        }
        copies(layout, layout)?;
        Ok(entry)
    }
}
