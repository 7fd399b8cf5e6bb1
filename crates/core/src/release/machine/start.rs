//! Before a release starts: what it waits for, and what stops it for good.

use super::Machine;
use crate::release::{Action, Block, Member, Phase, Record, Release, Stage, Step};

/// A record has some 350 bytes, up to 650 with long names, and the API server stores 1.5 MiB at most.
const MAX_CONSUMERS: usize = 2300;

impl Machine<'_> {
    pub(super) fn wait_to_start(mut self) -> Step {
        if let Some(newer) = self.observed.superseded_by {
            self.enter(Phase::Superseded, format!("release {newer} took its place before it started"));
        } else if self.observed.has_succeeded {
            // It started and ended in one step, and could not record that.
            self.take_in_members();
            self.end_well();
        } else if self.is_aborted() {
            self.abort_before_start();
        } else if let Some(reason) = self.observed.held {
            // Held before it started: its content is invalid, or it is too large.
            self.enter(Phase::Rejected, reason);
        } else if self.release().wishes.paused {
            let paused = self.paused_by_a_person();
            self.enter(Phase::Paused, paused);
        } else if self.takes_nothing_back() {
            self.enter(Phase::Superseded, "the change was taken back before it started");
        } else if let Some(block) = self.observed.blocked.clone() {
            self.wait_for(&block);
        } else if let Some(stopped) = self.is_stopped_by_somebody() {
            self.enter(Phase::Pending, format!("waits for {stopped}"));
        } else if let Some(reason) = self.is_too_large() {
            self.actions.push(Action::Hold { reason: reason.clone() });
            self.enter(Phase::Rejected, reason);
        } else if self.observed.can_judge {
            self.start();
            return self.go_on();
        } else {
            self.enter(Phase::Pending, "the pods of its consumers are being read");
        }
        self.finish()
    }

    fn is_stopped_by_somebody(&self) -> Option<String> {
        stopped_by_somebody(self.release(), self.observed.members, self.observed.inherited)
    }

    fn is_too_large(&self) -> Option<String> {
        let consumers = self.observed.members.iter().filter(|member| !member.concerned.is_empty()).count();
        (consumers > MAX_CONSUMERS).then(|| {
            format!(
                "it would move {consumers} workloads, and {MAX_CONSUMERS} are the most of which one release can keep a record: divide the config"
            )
        })
    }

    /// Whoever joined it while it waited has its versions, and goes back as from one under way. So does whom the release moved whose place it
    /// takes: once that one has made room.
    fn abort_before_start(&mut self) {
        let reason = "aborted by a person before it started".to_owned();
        let has_anybody = self.observed.members.iter().any(|member| self.joined(member).next().is_some());
        let earlier = self.observed.blocked.as_ref().filter(|block| matches!(block, Block::Earlier(_)));
        if let Some(block) = earlier.filter(|_| has_anybody) {
            self.wait_for(block);
        } else if has_anybody {
            self.start();
            self.give_up(reason, Phase::Aborted);
        } else {
            self.actions.push(Action::Hold { reason: reason.clone() });
            self.enter(Phase::Aborted, reason);
        }
    }

    /// Somebody may have joined it while it waited, and has what was taken back.
    fn takes_nothing_back(&self) -> bool {
        let is_stranded = |member: &Member| self.release().configs().any(|config| member.stranded.contains(config));
        let has_it = |member: &Member| is_stranded(member) || self.left_behind(member).next().is_some();
        let has_anybody = !self.observed.inherited.is_empty() || self.observed.members.iter().any(has_it);
        // Whom the release has whose place it takes is known once that one has made room.
        let is_known = !matches!(self.observed.blocked, Some(Block::Earlier(_)));
        self.release().takes_back() && is_known && !has_anybody
    }

    fn wait_for(&mut self, block: &Block) {
        let reason = match block {
            Block::Release(other) => format!("waits for release {other}, which moves one of its consumers"),
            Block::Earlier(other) => format!("waits for release {other} to make room for it"),
            Block::Storm { consumer, until } => {
                self.wake_at(*until);
                format!("{consumer} was rolled too often of late: waits until {until:.0}")
            }
            Block::Budget { until } => {
                self.wake_at(*until);
                format!("too many workloads of the cluster were rolled in the last minute: waits until {until:.0}")
            }
            Block::Unreadable(what) => what.clone(),
        };
        self.enter(Phase::Pending, reason);
    }

    fn start(&mut self) {
        self.progress.started_at = Some(self.now);
        self.progress.stage = Stage::FirstBatch;
        self.take_in_members();
        let waves = self.progress.consumers.iter().map(|record| record.wave);
        // Whoever goes back waits for nobody.
        let wave = if self.release().takes_back() { waves.max() } else { waves.min() };
        self.progress.wave = wave.unwrap_or(0);
        self.enter(Phase::Progressing, String::new());
    }
}

/// What a person has stopped is not started again by a change of config. What goes back to exactly what it was starts nothing.
pub fn stopped_by_somebody(release: &Release, members: &[Member], inherited: &[Record]) -> Option<String> {
    let goes_back = |member: &&Member| {
        let record = inherited.iter().find(|record| record.consumer == member.consumer && !record.has_joined);
        release.takes_back() && record.is_some_and(|record| record.template_before == member.template)
    };
    let moved = members.iter().filter(|member| !member.concerned.is_empty());
    let mut started = moved.filter(|member| !goes_back(member));
    started.find_map(|member| Some(format!("{}: {}", member.consumer, member.rollout.stopped.as_ref()?)))
}
