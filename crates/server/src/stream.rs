//! Body of an answer that is sent as it comes, as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use futures_core::Stream;

use crate::answer::{AnswerFormat, RunningAnswer, failure_of};
use crate::answer_event::AnswerEvent;

/// Events of an answer. When it is dropped, the request is cancelled.
pub(crate) struct EventStream<F> {
    answer: RunningAnswer,
    format: F,
    has_begun: bool,
    has_ended: bool,
}

impl<F: AnswerFormat> EventStream<F> {
    pub(crate) fn new(answer: RunningAnswer, format: F) -> EventStream<F> {
        EventStream {
            answer,
            format,
            has_begun: false,
            has_ended: false,
        }
    }

    /// The text of an event, which may be none.
    fn write(&mut self, event: AnswerEvent) -> String {
        match event {
            AnswerEvent::Accepted => String::new(),
            AnswerEvent::Part(text, tokens) => self.format.part(&text, &tokens),
            AnswerEvent::End(end) => {
                self.has_ended = true;
                self.format.end(&end)
            }
            other => {
                self.has_ended = true;
                self.format.failure(&failure_of(other))
            }
        }
    }
}

impl<F: AnswerFormat> Stream for EventStream<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        if stream.has_ended {
            return Poll::Ready(None);
        }
        let mut events = String::new();
        if !stream.has_begun {
            stream.has_begun = true;
            events = stream.format.begin();
        }
        while events.is_empty() {
            match stream.answer.poll_event(context) {
                Poll::Ready(event) => events = stream.write(event),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Some(Ok(events.into())))
    }
}
