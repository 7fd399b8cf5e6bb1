//! What the controller waits for: watches, watches of pods, and work that is done.
//!
//! Each time another of them is asked first, so that none waits for ever behind one that is never at rest; and not by chance, so that the
//! same things happen in the same order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::watch::WatchEvent;

/// How many there are.
const SOURCES: usize = 3;

pub enum Input<D> {
    Event(WatchEvent),
    Done(D),
    /// Work that did not come to its end.
    Broken(JoinError),
    /// No further events come.
    End,
}

/// Whose turn it is to be asked first.
#[derive(Debug, Default)]
pub struct Turns(usize);

impl Turns {
    pub async fn next<D: 'static>(
        &mut self,
        mut events: Pin<&mut impl Stream<Item = WatchEvent>>,
        pod_events: &mut mpsc::Receiver<WatchEvent>,
        running: &mut JoinSet<D>,
    ) -> Input<D> {
        self.0 = (self.0 + 1) % SOURCES;
        let mut ask = |source: usize, context: &mut Context<'_>| match source {
            0 => events.as_mut().poll_next(context).map(|event| Some(event.map_or(Input::End, Input::Event))),
            1 => pod_events.poll_recv(context).map(|event| event.map(Input::Event)),
            _ => {
                let done = running.poll_join_next(context);
                done.map(|done| done.map(|done| done.map_or_else(Input::Broken, Input::Done)))
            }
        };
        poll_fn(|context| {
            for place in 0..SOURCES {
                if let Poll::Ready(Some(input)) = ask((self.0 + place) % SOURCES, context) {
                    return Poll::Ready(input);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::environment::Process;
    use crate::index::Watched;
    use crate::watch::What;

    fn event(watched: Watched) -> WatchEvent {
        WatchEvent { watched, scope: None, what: What::Listed }
    }

    fn name(input: &Input<u8>) -> &'static str {
        match input {
            Input::Event(WatchEvent { watched: Watched::Pod, .. }) => "pod",
            Input::Event(_) => "event",
            Input::Done(_) => "done",
            Input::Broken(_) => "broken",
            Input::End => "end",
        }
    }

    #[tokio::test]
    async fn nobody_waits_behind_one_that_is_never_at_rest() {
        let mut events = std::pin::pin!(stream::repeat_with(|| event(Watched::Release)));
        let (sender, mut pod_events) = mpsc::channel(10);
        let mut running = JoinSet::new();
        for number in 0..3 {
            sender.send(event(Watched::Pod)).await.unwrap();
            Process::system().spawn_into(&mut running, async move { number });
        }
        tokio::task::yield_now().await;
        let (mut turns, mut came) = (Turns::default(), Vec::new());
        for _ in 0..9 {
            came.push(name(&turns.next(events.as_mut(), &mut pod_events, &mut running).await));
        }
        assert_eq!(came, ["pod", "done", "event", "pod", "done", "event", "pod", "done", "event"]);
        assert_eq!(name(&turns.next(events.as_mut(), &mut pod_events, &mut running).await), "event", "the others rest");
    }

    #[tokio::test]
    async fn work_that_breaks_and_watches_that_end_are_told() {
        let (_sender, mut pod_events) = mpsc::channel(1);
        let mut running: JoinSet<u8> = JoinSet::new();
        Process::system().spawn_into(&mut running, async { panic!("on purpose") });
        let mut silent = std::pin::pin!(stream::pending());
        let mut turns = Turns::default();
        assert_eq!(name(&turns.next(silent.as_mut(), &mut pod_events, &mut running).await), "broken");
        let mut over = std::pin::pin!(stream::empty());
        assert_eq!(name(&turns.next(over.as_mut(), &mut pod_events, &mut running).await), "end");
    }
}
