//! What is to be done, and when.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::kinds::Key;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// A controller looks at its object.
    Sync(Key),
    /// The scheduler or the kubelet looks at a pod.
    Pod(Key),
    /// The garbage collector looks at an object: at its owners, or at what it owns.
    Collect(Key),
    /// The node controller looks at a node.
    Node(usize),
}

impl Job {
    /// Whether one of the controller manager's own does it.
    pub(super) fn is_of_controller(&self) -> bool {
        !matches!(self, Self::Pod(_))
    }
}

/// Jobs by the time that they are due. As in Kubernetes' work queues, a job is there once, at the earliest time that somebody asked for:
/// whoever does it knows whether there is more to do later.
#[derive(Default)]
pub(super) struct Queue {
    due: BTreeSet<(Timestamp, u64, Job)>,
    places: BTreeMap<Job, (Timestamp, u64)>,
    /// Jobs that are due at the same time are done in the order in which they came.
    count: u64,
}

impl Queue {
    pub(super) fn add(&mut self, job: Job, at: Timestamp) {
        match self.places.get(&job) {
            Some((known, _)) if *known <= at => return,
            Some(&(known, place)) => {
                self.due.remove(&(known, place, job.clone()));
            }
            None => {}
        }
        self.count += 1;
        self.places.insert(job.clone(), (at, self.count));
        self.due.insert((at, self.count, job));
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, ..)| *at)
    }

    pub(super) fn take(&mut self, now: Timestamp) -> Option<Job> {
        self.next().filter(|at| *at <= now)?;
        let (_, _, job) = self.due.pop_first()?;
        self.places.remove(&job);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_there_once_at_its_earliest_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut queue = Queue::default();
        for (node, second) in [(1, 9), (2, 5), (1, 3), (1, 7), (3, 5)] {
            queue.add(Job::Node(node), at(second));
        }
        assert_eq!(queue.next(), Some(at(3)));
        assert_eq!(queue.take(at(2)), None);
        let taken: Vec<_> = std::iter::from_fn(|| queue.take(at(9))).collect();
        assert_eq!(taken, [Job::Node(1), Job::Node(2), Job::Node(3)]);
    }
}
