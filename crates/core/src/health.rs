//! How a consumer does under a new version, judged unit by unit: a unit is a pod that should run something, with a history of its own.
//!
//! Evidence has a time. What is older than the consumer's move counts for nothing, and so does what has only just begun. What was
//! broken for long before the move is neither blamed on it nor a licence: the release may go on, but nobody says that all is well.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::kinds::Kind;
use crate::policy::Policy;

/// A pod may be not ready for so long during the bake before that counts: one missed probe is no verdict.
const READINESS_GRACE: Duration = Duration::from_secs(5);
/// What has lasted for so long is a state, and not a moment: a pod that is starting, or missed a probe, is not broken.
const LASTING: Duration = Duration::from_secs(30);
/// A container that ended so often comes up and goes down again by itself.
const CRASH_LOOP: u32 = 2;
/// A pod may be made so long before we see that its template changed: its time is in whole seconds, and our watch a moment behind.
const SEEN_LATE: Duration = Duration::from_secs(2);

/// A pod of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unit {
    pub name: String,
    /// Tells it apart from a later one of the same name.
    pub uid: String,
    /// Whether it runs the versions that the consumer's template is pinned to.
    pub is_new: bool,
    pub is_ready: bool,
    /// Whether it was ready before, or is: one that was recreated is on its way, and has lost nothing.
    pub was_ready: bool,
    /// Since when it is ready, or not.
    pub since: Option<Timestamp>,
    pub created: Option<Timestamp>,
    /// The most that one of its containers was restarted.
    pub restarts: u32,
    /// When one of its containers last ended.
    pub last_end: Option<Timestamp>,
    /// What the kubelet says is wrong with it, in one sentence.
    pub trouble: Option<String>,
    /// Why it has no place to run, in one sentence: no node has room for it, or its node is lost. No config is to blame for that.
    pub homeless: Option<String>,
}

/// How far a consumer's own controller is.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rollout {
    /// Whether its status speaks of the template that we see.
    pub is_observed: bool,
    pub desired: u32,
    pub updated: u32,
    /// Pods that are ready, old and new.
    pub ready: u32,
    /// How many pods its user keeps at the old version, or we do behind a gate.
    pub kept_back: u32,
    /// Whether the controller is done: every pod is new.
    pub is_complete: bool,
    /// Whether its pods are replaced only when a person deletes them.
    pub is_by_hand: bool,
    /// How long its controller watches a pod that is ready before it counts as available.
    pub min_ready: Duration,
    /// Why no pod of it may run what its template says, although its controller is done.
    pub idle: Option<String>,
    /// What it waits for, if it waits for a person.
    pub waits_for: Option<String>,
    /// Whether it goes on by itself after a while, whatever a release does.
    pub goes_on_by_itself: bool,
    /// What keeps its controller from making pods, in its own words.
    pub hindrance: Option<String>,
    /// Whether it is in the middle of bringing out other code: what its template says has not proved itself.
    pub is_midway: bool,
    /// The hashes of the templates between which it is, where its controller tells them: they may differ in nothing but their pins.
    pub between: Option<(String, String)>,
    /// Why it must not be touched: a person stopped it, and any change of its template would start it again.
    pub stopped: Option<String>,
    /// Why it gave up, if it did.
    pub failure: Option<Failure>,
}

impl Rollout {
    /// Whether its controller replaces every pod by itself.
    pub fn replaces_all(&self) -> bool {
        self.kept_back == 0 && !self.is_by_hand
    }

    /// Whether its controller may be waiting for a broken pod, and would make it from the present template once that is gone.
    pub fn may_wait_for_a_pod(&self, kind: Kind) -> bool {
        kind.waits_for_broken_pods() && self.is_observed && !self.is_by_hand
    }

    /// Whether somebody keeps a pod as it is: made again, it would be the same.
    fn keeps_back(&self, pod: &str) -> bool {
        ordinal(pod).is_some_and(|ordinal| ordinal < self.kept_back)
    }

    /// Whether it is where its template says: every pod is new and ready, or there is none to wait for.
    pub fn has_arrived(&self) -> bool {
        self.is_observed && self.is_complete && (self.idle.is_some() || self.ready >= self.desired)
    }
}

/// Why a controller gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    /// When it said so last, where it says when.
    pub at: Option<Timestamp>,
}

/// How a consumer did before its release, and when it was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Before {
    /// Pods that had been broken for long.
    pub broken: u32,
    pub moved_at: Option<Timestamp>,
}

/// How the new pods of a consumer do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub desired: u32,
    pub updated: u32,
    pub ready: u32,
    pub failing: u32,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Verdict {
    #[default]
    Rolling,
    /// It waits for a person, who is told what for.
    Waiting(String),
    /// As many new pods as wanted are ready.
    Healthy,
    /// As much as can be expected of it is ready: it was broken for long before, or pods of it may fail. In one sentence.
    StillBroken(String),
    Failed(String),
}

/// What a consumer has to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// So many new pods, and no more.
    Batch(u32),
    /// All of them.
    All,
}

/// How many pods of those that are wanted have been broken for long: one too many, from a rollout that is stuck, is none of them. One that
/// has never been ready and shows no trouble may only be slow: it has as much time as a new one.
pub fn broken(units: &[Unit], desired: u32, policy: &Policy, now: Timestamp) -> u32 {
    let is_slow = |unit: &Unit| {
        let is_starting = !unit.was_ready && unit.restarts == 0 && unit.trouble.is_none() && unit.homeless.is_none();
        let has_had_time = |since| has_passed(since, policy.progress_deadline, now);
        is_starting && !unit.since.is_some_and(has_had_time)
    };
    let is_broken = |unit: &&Unit| is_long_broken(unit, now) && !is_slow(unit);
    if desired == 0 {
        // What runs now and then is as its last pods were: an older failure is over.
        let mut newest: Vec<&Unit> = units.iter().collect();
        newest.sort_by_key(|unit| std::cmp::Reverse(unit.created));
        return count(newest.into_iter().take_while(is_broken).count());
    }
    let ready = count(units.iter().filter(|unit| unit.is_ready).count());
    count(units.iter().filter(is_broken).count()).min(desired.saturating_sub(ready))
}

/// Whether a controller that waits for this pod may wait for long. In a crash loop it shows no trouble for a moment, again and again.
pub fn may_stay_unready(unit: &Unit, now: Timestamp) -> bool {
    is_broken(unit, now) || (!unit.is_ready && unit.restarts >= CRASH_LOOP)
}

/// Whether something is wrong with a pod that will not pass by itself soon.
fn is_broken(unit: &Unit, now: Timestamp) -> bool {
    !unit.is_ready && (unit.trouble.is_some() || is_long_broken(unit, now))
}

fn is_long_broken(unit: &Unit, now: Timestamp) -> bool {
    is_broken_for(LASTING, unit, now)
}

fn is_broken_for(time: Duration, unit: &Unit, now: Timestamp) -> bool {
    let lasts = |since: Option<Timestamp>| since.is_some_and(|since| has_passed(since, time, now));
    // In a crash loop it may be ready for a moment, again and again.
    let crashes = unit.trouble.is_some() && unit.restarts >= CRASH_LOOP && lasts(unit.created);
    !unit.is_ready && (lasts(unit.since) || crashes)
}

/// Judges while the new pods come up.
pub fn judge(rollout: &Rollout, units: &[Unit], before: Before, goal: Goal, policy: &Policy, now: Timestamp) -> Health {
    let new = || units.iter().filter(|unit| unit.is_new);
    let troubles: Vec<String> = new().filter_map(|unit| trouble(unit, before, policy)).collect();
    let ready = count(new().filter(|unit| unit.is_ready).count());
    let failing = count(troubles.len());
    let gave_up =
        rollout.failure.as_ref().filter(|failure| rollout.is_observed && is_after(failure.at, before.moved_at));
    // Where every pod is bad, nothing has proved itself, however many may be.
    let are_all = rollout.desired > 0 && failing >= rollout.desired && failing > before.broken;
    let verdict = if failing > may_fail(before, policy) || are_all {
        Verdict::Failed(troubles.into_iter().next().unwrap_or_default())
    } else if let Some(failure) = gave_up.filter(|_| before.broken == 0) {
        Verdict::Failed(failure.reason.clone())
    } else if let Some(waits_for) = &rollout.waits_for {
        Verdict::Waiting(waits_for.clone())
    } else if is_reached(rollout, ready, goal) {
        Verdict::Healthy
    } else if let Some(why) = still_broken(rollout, units, ready, before, goal, policy, now) {
        Verdict::StillBroken(why)
    } else {
        Verdict::Rolling
    };
    // What its controller says of the template before counts for nothing.
    let updated = if rollout.is_observed { rollout.updated } else { 0 };
    Health { desired: rollout.desired, updated, ready, failing, verdict }
}

/// How many new pods may be bad: so many as the policy says, or as were broken for long before.
fn may_fail(before: Before, policy: &Policy) -> u32 {
    policy.max_failing_pods.max(before.broken)
}

fn is_reached(rollout: &Rollout, ready: u32, goal: Goal) -> bool {
    match goal {
        Goal::Batch(size) => {
            rollout.is_observed && ready >= size.min(rollout.desired.saturating_sub(rollout.kept_back))
        }
        // How the pods do that somebody keeps at the old version is their matter.
        Goal::All if rollout.kept_back > 0 && rollout.kept_back < rollout.desired => {
            rollout.is_observed && rollout.is_complete && ready >= rollout.desired - rollout.kept_back
        }
        Goal::All => rollout.has_arrived(),
    }
}

/// Whether no more is to be expected of a consumer that was broken for long, or of pods that may fail: what is not ready has not been so
/// for long.
fn still_broken(
    rollout: &Rollout,
    units: &[Unit],
    ready: u32,
    before: Before,
    goal: Goal,
    policy: &Policy,
    now: Timestamp,
) -> Option<String> {
    let wanted = match goal {
        Goal::Batch(size) => size.min(rollout.desired.saturating_sub(rollout.kept_back)),
        Goal::All => rollout.desired,
    };
    let unready: Vec<&Unit> = units.iter().filter(|unit| unit.is_new && !unit.is_ready).collect();
    // Whoever gives little time to come up wants to know sooner.
    let lasting = LASTING.min(policy.progress_deadline / 2);
    let worst = unready.first().filter(|_| unready.iter().all(|unit| is_broken_for(lasting, unit, now)))?;
    let is_as_before = before.broken > 0 && ready + before.broken >= wanted;
    // A pod that is still starting is no failure yet.
    let has_failed = |unit: &&Unit| unit.trouble.is_some() || unit.homeless.is_some() || unit.was_ready;
    let is_allowed = ready > 0 && ready + may_fail(before, policy) >= wanted && unready.iter().all(has_failed);
    let why = match worst.trouble.as_ref().or(worst.homeless.as_ref()) {
        Some(why) => format!("pod {}: {why}", worst.name),
        None => format!("pod {} is not ready", worst.name),
    };
    match (is_as_before, is_allowed) {
        _ if !rollout.is_observed => None,
        (true, _) => Some(format!("it was broken before, and is: {why}")),
        (false, true) => Some(format!("{why}, which the policy allows (maxFailingPods)")),
        (false, false) => None,
    }
}

/// What went wrong with new pods since they were ready, if anything did.
pub fn relapse(units: &[Unit], before: Before, ready_at: Timestamp, policy: &Policy, now: Timestamp) -> Option<String> {
    let relapsed = |unit: &Unit| {
        // One that came later has not been ready yet, perhaps: it is judged like any that comes up.
        if unit.created.is_some_and(|created| created > ready_at) {
            return None;
        }
        if unit.restarts > 0 && unit.last_end.is_some_and(|end| end > ready_at) {
            return Some(format!("pod {} restarted after it was ready", unit.name));
        }
        let has_lost_it = unit.was_ready && !unit.is_ready && unit.homeless.is_none();
        let since = unit.since.filter(|since| has_lost_it && *since > ready_at)?;
        has_passed(since, READINESS_GRACE, now).then(|| format!("pod {} is not ready any more", unit.name))
    };
    let found: Vec<String> = units.iter().filter(|unit| unit.is_new).filter_map(relapsed).collect();
    (count(found.len()) > may_fail(before, policy)).then(|| found.into_iter().next()).flatten()
}

/// Whether all that is not ready has no place to run: no config is to blame for that.
pub fn is_only_homeless(units: &[Unit]) -> bool {
    let mut unready = units.iter().filter(|unit| unit.is_new && !unit.is_ready).peekable();
    unready.peek().is_some() && unready.all(|unit| unit.homeless.is_some())
}

/// Pods that the template has left behind and that do not work: the controller of a StatefulSet waits for them for ever. On the way back,
/// what was never ready counts at once: it serves nobody. Pods that somebody keeps at the old version are theirs.
pub fn stuck<'a>(
    units: &'a [Unit],
    rollout: &'a Rollout,
    goes_back: bool,
    now: Timestamp,
) -> impl Iterator<Item = &'a Unit> {
    let is_stuck = move |unit: &Unit| {
        is_broken(unit, now) || (goes_back && !unit.is_ready && !unit.was_ready && unit.homeless.is_none())
    };
    units.iter().filter(move |unit| !unit.is_new && is_stuck(unit) && !rollout.keeps_back(&unit.name))
}

/// The place of a pod in its StatefulSet.
fn ordinal(pod: &str) -> Option<u32> {
    pod.rsplit_once('-')?.1.parse().ok()
}

/// Whether a pod was made while the release ran, and is not what the template says any more: it runs the version that failed.
pub fn runs_failed(unit: &Unit, before: Before) -> bool {
    let is_younger = |(created, moved_at)| !has_passed(created, SEEN_LATE, moved_at);
    !unit.is_new && unit.created.zip(before.moved_at).is_some_and(is_younger)
}

fn trouble(unit: &Unit, before: Before, policy: &Policy) -> Option<String> {
    let restarted = || {
        // On the way back the pods are old ones, which may have restarted long ago.
        let often = unit.restarts > policy.max_restarts && is_after(unit.last_end, before.moved_at);
        often.then(|| format!("restarted {} times", unit.restarts))
    };
    let what = unit.trouble.clone().or_else(restarted)?;
    Some(format!("pod {}: {what}", unit.name))
}

/// Without a time, it may be of now.
fn is_after(at: Option<Timestamp>, moved_at: Option<Timestamp>) -> bool {
    at.zip(moved_at).is_none_or(|(at, moved_at)| at >= moved_at)
}

fn has_passed(since: Timestamp, time: Duration, now: Timestamp) -> bool {
    now.duration_since(since) >= SignedDuration::try_from(time).unwrap_or_default()
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const NOW: i64 = 1000;

    fn unit(name: &str, is_new: bool) -> Unit {
        let long_ago = Some(at(NOW - 500));
        Unit {
            name: name.into(),
            is_new,
            is_ready: true,
            was_ready: true,
            since: long_ago,
            created: long_ago,
            ..Unit::default()
        }
    }

    fn crashing(name: &str, is_new: bool) -> Unit {
        Unit { is_ready: false, trouble: Some("CrashLoopBackOff".into()), ..unit(name, is_new) }
    }

    fn rollout(updated: u32) -> Rollout {
        let is_complete = updated == 2;
        Rollout { is_observed: true, desired: 2, updated, ready: 2, is_complete, ..Rollout::default() }
    }

    fn verdict(rollout: &Rollout, units: &[Unit], before: Before, goal: Goal) -> Verdict {
        judge(rollout, units, before, goal, &Policy::default(), at(NOW)).verdict
    }

    #[test]
    fn one_crash_loop_among_the_new_pods_is_enough() {
        let units = [unit("old", false), crashing("new", true)];
        let found = verdict(&rollout(1), &units, Before::default(), Goal::All);
        assert_eq!(found, Verdict::Failed("pod new: CrashLoopBackOff".into()));
    }

    #[test]
    fn old_pods_do_not_count() {
        let units = [crashing("old", false), unit("new", true)];
        assert_eq!(verdict(&rollout(1), &units, Before::default(), Goal::All), Verdict::Rolling);
    }

    #[test]
    fn a_pod_is_stuck_if_it_is_broken_and_nobody_keeps_it() {
        let unready = |name: &str, since: i64| Unit {
            is_ready: false,
            was_ready: false,
            since: Some(at(since)),
            ..unit(name, false)
        };
        let found = |units: &[Unit], rollout: &Rollout, goes_back| stuck(units, rollout, goes_back, at(NOW)).count();
        let units = [crashing("db-0", false), unready("db-1", NOW - 40), unready("db-2", NOW - 5), unit("db-3", false)];
        assert_eq!(found(&units, &rollout(1), false), 2);
        assert_eq!(found(&units, &rollout(1), true), 3, "on the way back nobody needs what was never ready");
        let kept_back = Rollout { kept_back: 2, ..rollout(1) };
        assert_eq!(found(&units, &kept_back, true), 1);
        assert_eq!(found(&[crashing("db-0", true)], &rollout(1), true), 0, "it is what the template says");
    }

    #[test]
    fn what_somebody_keeps_back_is_not_waited_for() {
        let kept_back = Rollout { kept_back: 1, is_complete: true, ready: 1, ..rollout(1) };
        let units = [crashing("db-0", false), unit("db-1", true)];
        assert_eq!(verdict(&kept_back, &units, Before::default(), Goal::All), Verdict::Healthy);
    }

    #[test]
    fn broken_is_what_has_lasted() {
        let unready = |since| Unit { is_ready: false, since: Some(at(since)), ..unit("a", false) };
        let broken = |units: &[Unit]| broken(units, 1, &Policy::default(), at(NOW));
        assert_eq!(broken(&[unready(NOW - 40)]), 1);
        assert_eq!(broken(&[unready(NOW - 40), unit("b", false)]), 0, "as many as wanted are ready");
        assert_eq!(broken(&[unready(NOW - 12)]), 0, "it is starting, or missed a probe");
        assert_eq!(broken(&[Unit { restarts: 2, ..unit("a", false) }]), 0, "it restarted once upon a time");
        // Without a probe it is ready for a moment after each start.
        let loops = Unit { restarts: 3, since: Some(at(NOW - 2)), ..crashing("a", false) };
        assert_eq!(broken(&[loops]), 1);
        let slow = |since| Unit { was_ready: false, ..unready(since) };
        assert_eq!(broken(&[slow(NOW - 40)]), 0, "some apps take a minute to start");
        assert_eq!(broken(&[slow(NOW - 400)]), 1, "but not for ever");
        let homeless = Unit { homeless: Some("no node has room for it".into()), ..slow(NOW - 40) };
        assert_eq!(broken(&[homeless]), 1);
    }

    #[test]
    fn what_runs_now_and_then_was_broken_if_its_last_pods_were() {
        let job = |name: &str, created: i64, fails: bool| {
            let unit = if fails { crashing(name, false) } else { unit(name, false) };
            Unit { created: Some(at(created)), ..unit }
        };
        let broken = |units: &[Unit]| broken(units, 0, &Policy::default(), at(NOW));
        assert_eq!(broken(&[job("a", 1, true), job("b", 2, true)]), 2);
        assert_eq!(broken(&[job("a", 1, true), job("b", 2, false)]), 0, "it was mended since");
        assert_eq!(broken(&[job("b", 2, true), job("a", 1, false)]), 1);
    }

    #[test]
    fn so_many_pods_as_the_policy_says_may_stay_broken() {
        let policy = Policy { max_failing_pods: 1, ..Policy::default() };
        let judged = |units: &[Unit]| {
            let rollout = Rollout { ready: 1, ..rollout(2) };
            judge(&rollout, units, Before::default(), Goal::All, &policy, at(NOW)).verdict
        };
        let told = |verdict: Verdict| matches!(verdict, Verdict::StillBroken(why) if why.contains("maxFailingPods"));
        assert!(told(judged(&[crashing("a", true), unit("b", true)])));
        let lost = Unit { is_ready: false, homeless: Some("its node is lost".into()), ..unit("a", true) };
        assert!(told(judged(&[lost, unit("b", true)])));
        let starting = Unit { is_ready: false, was_ready: false, ..unit("a", true) };
        assert_eq!(judged(&[starting, unit("b", true)]), Verdict::Rolling, "it may get ready");
        assert!(matches!(judged(&[crashing("a", true), crashing("b", true)]), Verdict::Failed(_)));
        let none = Rollout { desired: 1, ready: 0, ..rollout(1) };
        let alone = judge(&none, &[crashing("a", true)], Before::default(), Goal::All, &policy, at(NOW)).verdict;
        assert!(matches!(alone, Verdict::Failed(_)), "where every pod is bad nothing has proved itself");
    }

    #[test]
    fn what_was_broken_for_long_is_not_blamed_but_not_called_well_either() {
        let before = Before { broken: 1, moved_at: Some(at(NOW - 60)) };
        let done = Rollout { ready: 1, ..rollout(2) };
        let young = Unit { since: Some(at(NOW - 3)), created: Some(at(NOW - 3)), ..crashing("a", true) };
        assert_eq!(verdict(&done, &[young, unit("b", true)], before, Goal::All), Verdict::Rolling, "it may get well");
        let units = [crashing("a", true), unit("b", true)];
        let still = Verdict::StillBroken("it was broken before, and is: pod a: CrashLoopBackOff".into());
        assert_eq!(verdict(&done, &units, before, Goal::All), still);
        let worse = [crashing("a", true), crashing("b", true)];
        assert!(matches!(verdict(&done, &worse, before, Goal::All), Verdict::Failed(_)));
        let well = [unit("a", true), unit("b", true)];
        assert_eq!(verdict(&rollout(2), &well, before, Goal::All), Verdict::Healthy, "it was repaired");
    }

    #[test]
    fn who_was_broken_before_is_not_waited_for_in_a_first_batch_either() {
        let before = Before { broken: 1, moved_at: Some(at(NOW - 60)) };
        let batch = |units: &[Unit], size| verdict(&rollout(1), units, before, Goal::Batch(size));
        let old = unit("old", false);
        let still = Verdict::StillBroken("it was broken before, and is: pod new: CrashLoopBackOff".into());
        assert_eq!(batch(&[old.clone(), crashing("new", true)], 1), still);
        assert_eq!(batch(&[old.clone(), unit("new", true)], 1), Verdict::Healthy, "it was repaired");
        assert_eq!(batch(&[old, crashing("new", true)], 3), Verdict::Rolling, "another one is still to come");
        let worse = [crashing("a", true), crashing("b", true)];
        assert!(matches!(batch(&worse, 2), Verdict::Failed(_)), "only one of them was broken");
    }

    #[test]
    fn restarts_from_before_the_move_count_for_nothing() {
        let before = Before { broken: 0, moved_at: Some(at(NOW - 60)) };
        let restarted = |end| Unit { restarts: 5, last_end: Some(at(end)), ..unit("a", true) };
        assert_eq!(verdict(&rollout(2), &[restarted(NOW - 90)], before, Goal::All), Verdict::Healthy, "it is back");
        assert!(matches!(verdict(&rollout(2), &[restarted(NOW - 30)], before, Goal::All), Verdict::Failed(_)));
    }

    #[test]
    fn who_keeps_pods_back_needs_no_more_than_the_rest_for_a_first_batch() {
        let kept = Rollout { kept_back: 1, ..rollout(1) };
        let units = [unit("old", false), unit("new", true)];
        assert_eq!(verdict(&kept, &units, Before::default(), Goal::Batch(2)), Verdict::Healthy);
    }

    #[test]
    fn a_crash_loop_is_one_also_while_its_container_runs() {
        let young = Unit { is_ready: false, since: Some(at(NOW - 5)), created: Some(at(NOW - 20)), ..unit("a", true) };
        assert!(!may_stay_unready(&young, at(NOW)), "it is starting");
        assert!(may_stay_unready(&Unit { restarts: 2, ..young.clone() }, at(NOW)));
        assert!(may_stay_unready(&Unit { trouble: Some("CrashLoopBackOff".into()), ..young }, at(NOW)));
        assert!(!may_stay_unready(&Unit { restarts: 2, ..unit("a", true) }, at(NOW)), "it is ready again");
    }

    #[test]
    fn a_pod_that_was_starting_is_no_licence() {
        let units = [Unit { is_ready: false, since: Some(at(NOW - 200)), ..unit("new", true) }];
        let done = Rollout { desired: 1, updated: 1, ready: 0, is_complete: true, ..rollout(1) };
        assert_eq!(verdict(&done, &units, Before::default(), Goal::All), Verdict::Rolling);
    }

    #[test]
    fn a_first_batch_is_reached_when_it_is_ready() {
        let units = [unit("old", false), unit("new", true)];
        assert_eq!(verdict(&rollout(1), &units, Before::default(), Goal::Batch(1)), Verdict::Healthy);
        assert_eq!(verdict(&rollout(1), &units, Before::default(), Goal::All), Verdict::Rolling);
        assert_eq!(verdict(&rollout(2), &units, Before::default(), Goal::All), Verdict::Healthy);
    }

    #[test]
    fn a_status_that_speaks_of_an_older_template_says_nothing() {
        let failure = Some(Failure { reason: "it gave up".into(), at: Some(at(NOW)) });
        let stale = Rollout { is_observed: false, failure, ..rollout(2) };
        assert_eq!(verdict(&stale, &[], Before::default(), Goal::All), Verdict::Rolling);
    }

    #[test]
    fn a_controller_that_gave_up_before_the_move_says_nothing_about_it() {
        let gave_up = |second| {
            let failure = Some(Failure { reason: "it gave up".into(), at: Some(at(second)) });
            let before = Before { broken: 0, moved_at: Some(at(NOW - 10)) };
            verdict(&Rollout { failure, ..rollout(1) }, &[], before, Goal::All)
        };
        assert_eq!(gave_up(NOW - 60), Verdict::Rolling);
        assert_eq!(gave_up(NOW - 5), Verdict::Failed("it gave up".into()));
    }

    #[test]
    fn a_restart_or_a_lost_readiness_after_it_was_ready_is_a_relapse() {
        let (ready_at, policy) = (at(NOW - 20), Policy::default());
        let relapse = |unit: Unit| relapse(&[unit], Before::default(), ready_at, &policy, at(NOW));
        assert_eq!(relapse(unit("new", true)), None);
        let restarted = |second| Unit { restarts: 1, last_end: Some(at(second)), ..unit("new", true) };
        assert!(relapse(restarted(NOW - 10)).unwrap().contains("restarted"));
        assert_eq!(relapse(restarted(NOW - 30)), None, "it had restarted before");
        let lost = |second| Unit { is_ready: false, since: Some(at(second)), ..unit("new", true) };
        assert!(relapse(lost(NOW - 10)).unwrap().contains("not ready"));
        assert_eq!(relapse(lost(NOW - 2)), None, "it may come back");
        assert_eq!(relapse(Unit { was_ready: false, ..lost(NOW - 10) }), None, "it is on its way");
        assert_eq!(relapse(lost(NOW - 30)), None, "it comes up only now");
        assert_eq!(relapse(Unit { homeless: Some("its node is lost".into()), ..lost(NOW - 10) }), None);
    }

    #[test]
    fn so_many_pods_may_fail_in_the_bake_as_the_policy_says() {
        let policy = Policy { max_failing_pods: 1, ..Policy::default() };
        let lost = |name: &str| Unit { is_ready: false, since: Some(at(NOW - 10)), ..unit(name, true) };
        let found = |units: &[Unit]| relapse(units, Before::default(), at(NOW - 20), &policy, at(NOW));
        assert_eq!(found(&[lost("a"), unit("b", true)]), None);
        assert!(found(&[lost("a"), lost("b")]).is_some());
    }
}
