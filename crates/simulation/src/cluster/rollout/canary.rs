//! How many pods of the stable and of the new ReplicaSet a step of a canary asks for, as Argo Rollouts counts them where no traffic is routed.

use serde_json::{Value, json};

use super::super::read::{Round, count_or, share};

/// One ReplicaSet in the account.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Side {
    pub(super) wanted: u32,
    pub(super) available: u32,
}

impl Side {
    /// How many of it count when others are to be scaled down. Of the side that is to shrink, those that do not work count as well.
    fn for_scale_down(self, ignores_availability: bool) -> u32 {
        if ignores_availability { self.wanted } else { self.wanted.min(self.available) }
    }
}

/// What a Rollout has, and how much of it is to be new.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    pub(super) replicas: u32,
    pub(super) weight: u32,
    pub(super) surge: u32,
    pub(super) unavailable: u32,
    pub(super) new: Side,
    /// None if the new one is the stable one, or there is none yet: then no steps are taken.
    pub(super) stable: Option<Side>,
    /// Pods that are asked of all others.
    pub(super) others: u32,
}

pub(super) fn fenceposts(spec: &Value) -> (u32, u32) {
    let (canary, replicas) = (&spec["strategy"]["canary"], count_or(&spec["replicas"], 1));
    let quarter = json!("25%");
    let surge = share(canary.get("maxSurge").unwrap_or(&quarter), replicas, Round::Up).unwrap_or(0);
    let unavailable = share(canary.get("maxUnavailable").unwrap_or(&quarter), replicas, Round::Down).unwrap_or(0);
    (surge, if surge == 0 && unavailable == 0 { 1 } else { unavailable.min(replicas) })
}

impl Account {
    /// What the step asks for in the end, of the new and of the stable one.
    fn goal(&self) -> (u32, u32) {
        if self.stable.is_none() { (self.replicas, 0) } else { closest(self.replicas, self.weight, self.surge) }
    }

    /// The next sizes of the new and of the stable one on the way there, within surge and unavailability.
    pub(super) fn next(&self) -> (u32, u32) {
        let (new_goal, stable_goal) = self.goal();
        let stable = self.stable.unwrap_or_default();
        let (mut new_size, mut stable_size) = (self.new.wanted, stable.wanted);
        let most = self.replicas + self.surge;
        let mut room = most.saturating_sub(self.others + new_size + stable_size);
        let more = stable_goal.saturating_sub(stable_size).min(room);
        stable_size += more;
        room -= more;
        new_size += new_goal.saturating_sub(new_size).min(room);
        if self.others > 0 {
            return (new_size, stable_size);
        }
        let least = self.replicas.saturating_sub(self.unavailable);
        let is_growing = new_goal >= self.new.wanted;
        let left = self.new.for_scale_down(!is_growing) + stable.for_scale_down(is_growing);
        let Some(spare) = left.checked_sub(least).filter(|spare| *spare > 0) else { return (new_size, stable_size) };
        let shrunk = |side: Side, goal: u32, size: u32| {
            if side.wanted > goal { goal.max(side.wanted.saturating_sub(spare)) } else { size }
        };
        if !is_growing {
            new_size = shrunk(self.new, new_goal, new_size);
            fit((self.new, new_size), (stable, stable_size), most, least)
        } else if self.stable.is_some() {
            stable_size = shrunk(stable, stable_goal, stable_size);
            let (stable_size, new_size) = fit((stable, stable_size), (self.new, new_size), most, least);
            (new_size, stable_size)
        } else {
            (new_size, stable_size)
        }
    }
}

/// The numbers of new and stable pods that come closest to a weight. With a surge they may be one more than the replicas, together.
fn closest(replicas: u32, weight: u32, surge: u32) -> (u32, u32) {
    if replicas == 0 {
        return (0, 0);
    }
    let (ceiling, floor) = ((replicas * weight).div_ceil(100), replicas * weight / 100);
    // Where both are as far from the weight, the larger one is taken.
    let is_tied = |total: u32| (total * weight) % 100 == 50;
    // Neither side may be without pods, unless there is no room for both.
    let may_be_none = weight == 0 || weight == 100 || (replicas == 1 && surge == 0);
    let mut options = Vec::new();
    if ceiling < replicas || may_be_none {
        options.push((ceiling, replicas));
    }
    if !is_tied(replicas) && (floor != 0 || may_be_none) {
        options.push((floor, replicas));
    }
    if surge > 0 {
        options.push((ceiling, replicas + 1));
        if !is_tied(replicas + 1) && (floor != 0 || may_be_none) {
            options.push((floor, replicas + 1));
        }
    }
    let distance = |(new, total): &(u32, u32)| (f64::from(new * 100) / f64::from(*total) - f64::from(weight)).abs();
    let best = options.into_iter().reduce(|best, other| if distance(&other) < distance(&best) { other } else { best });
    best.map_or((0, replicas), |(new, total)| (new, total - new))
}

/// Brings the sizes of the side that shrinks and of the other one within the limits.
fn fit((shrinks, size): (Side, u32), (other, other_size): (Side, u32), most: u32, least: u32) -> (u32, u32) {
    let over = (size + other_size).saturating_sub(most);
    let mut other_size = other_size.saturating_sub(over);
    let available = shrinks.available.min(size) + other.available.min(other_size);
    let lost = other.available.saturating_sub(other_size);
    other_size += lost.min(least.saturating_sub(available));
    (size.saturating_sub((size + other_size).saturating_sub(most)), other_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(replicas: u32, weight: u32, stable: u32, unavailable: u32, surge: u32) -> (u32, u32) {
        let stable = Some(Side { wanted: stable, available: stable });
        let new = Side::default();
        Account { replicas, weight, surge, unavailable, new, stable, others: 0 }.next()
    }

    /// The examples of Argo's own documentation of this calculation, as far as they hold.
    #[test]
    fn sizes_are_as_argo_says() {
        assert_eq!(next(10, 10, 10, 1, 1), (1, 9));
        assert_eq!(next(10, 30, 10, 0, 3), (3, 10));
        assert_eq!(next(10, 30, 10, 5, 0), (0, 7));
        assert_eq!(next(1, 5, 1, 0, 1), (1, 1));
        assert_eq!(next(1, 95, 1, 0, 1), (1, 1));
    }

    #[test]
    fn the_closest_numbers_are_taken() {
        assert_eq!(closest(4, 50, 1), (2, 2));
        assert_eq!(closest(3, 50, 0), (2, 1), "the larger one, if both are as far");
        assert_eq!(closest(3, 50, 1), (2, 2), "one more comes closer");
        assert_eq!(closest(10, 1, 0), (1, 9), "neither is without pods");
        assert_eq!(closest(4, 100, 1), (4, 0));
    }

    #[test]
    fn without_a_stable_one_all_pods_are_new() {
        let account = Account {
            replicas: 3,
            weight: 20,
            surge: 1,
            unavailable: 0,
            new: Side::default(),
            stable: None,
            others: 0,
        };
        assert_eq!(account.next(), (3, 0));
    }
}
