//! All randomness of a schedule, from one seed.

use std::time::Duration;

/// A small seeded generator (splitmix64). Streams are forked by name, so that what one part draws does not change what another gets.
#[derive(Debug, Clone)]
pub struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Depends on the seed and the name only, not on what was drawn so far.
    #[must_use]
    pub fn fork(&self, name: &str) -> Self {
        // FNV-1a: every byte of the name changes all of the new seed.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self::new(mix(name.as_bytes().iter().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, hash)))
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a wide product: no division, and no bias worth speaking of.
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or_default()
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Both ends may come out, to the microsecond.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_micros()).unwrap_or(u64::MAX);
        low + Duration::from_micros(self.below(span.saturating_add(1)))
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let place = self.below(u64::try_from(from.len()).unwrap_or(u64::MAX));
        from.get(usize::try_from(place).unwrap_or_default())
    }
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_again_and_a_fork_does_not_depend_on_what_was_drawn() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        let drawn: Vec<u64> = (0..5).map(|_| one.next()).collect();
        assert_eq!(drawn, (0..5).map(|_| two.next()).collect::<Vec<_>>());
        assert_eq!(one.fork("a").next(), Random::new(7).fork("a").next());
        assert_ne!(one.fork("a").next(), one.fork("b").next());
        assert_ne!(Random::new(8).next(), Random::new(7).next());
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(1);
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert!((0..100).all(|_| !random.chance(0)) && (0..100).all(|_| random.chance(100)));
        let (low, high) = (Duration::from_millis(5), Duration::from_millis(6));
        assert!((0..1000).map(|_| random.between(low, high)).all(|drawn| (low..=high).contains(&drawn)));
        assert_eq!(random.between(high, low), high, "an empty span is its beginning");
        assert_eq!(random.pick::<u8>(&[]), None);
        let seen: std::collections::BTreeSet<u8> = (0..100).filter_map(|_| random.pick(&[1, 2, 3])).copied().collect();
        assert_eq!(seen.len(), 3);
    }
}
