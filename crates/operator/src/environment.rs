//! All that reaches outside of the process, besides the client of the API server.
//!
//! The operator asks nobody else for the time, for randomness, or for something to run on. So the same code runs in production, and in a
//! simulation that decides about all of it; `clippy.toml` of this crate names what goes around it.

use std::sync::{Arc, Mutex, PoisonError};

pub use crate::clock::Clock;
pub use crate::process::Process;
pub use crate::workshop::Workshop;

/// Given to everything that needs it. Clones share what they were made from.
#[derive(Debug, Clone)]
pub struct Environment {
    pub clock: Clock,
    pub random: Randomness,
    pub process: Process,
    pub workshop: Workshop,
}

impl Environment {
    /// What the machine has to offer.
    pub fn system() -> Self {
        Self {
            clock: Clock::system(),
            random: Randomness::system(),
            process: Process::system(),
            workshop: Workshop::threads(),
        }
    }

    /// A process of a simulation: it goes by this clock, draws from this seed, and can be frozen and killed. Nothing of it has a thread of
    /// its own.
    pub fn simulated(clock: Clock, seed: u64) -> Self {
        Self { clock, random: Randomness::seeded(seed), process: Process::simulated(), workshop: Workshop::inline() }
    }
}

/// Where random bytes come from.
#[derive(Debug, Clone)]
pub struct Randomness(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Seeded(Arc<Mutex<u64>>),
}

impl Randomness {
    /// The machine's: nobody can foresee it.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// The same bytes in the same order for the same seed. For simulations and tests only.
    pub fn seeded(seed: u64) -> Self {
        Self(Source::Seeded(Arc::new(Mutex::new(seed))))
    }

    pub fn fill(&self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        match &self.0 {
            #[expect(clippy::disallowed_methods, reason = "the one place that asks the machine")]
            Source::System => getrandom::fill(bytes),
            Source::Seeded(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                for chunk in bytes.chunks_mut(size_of::<u64>()) {
                    chunk.copy_from_slice(&split_mix(&mut state).to_le_bytes()[..chunk.len()]);
                }
                Ok(())
            }
        }
    }

    /// At least 0 and less than 1. In the middle if there is no randomness: nothing that is asked for so depends on it.
    pub fn fraction(&self) -> f64 {
        let mut bytes = [0; size_of::<u32>()];
        match self.fill(&mut bytes) {
            Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
            Err(_) => 0.5,
        }
    }
}

/// Sebastiano Vigna's `SplitMix64`.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(random: &Randomness) -> [u8; 20] {
        let mut bytes = [0; 20];
        random.fill(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_seed_decides_about_all_that_is_drawn() {
        let (one, same, other) = (Randomness::seeded(1), Randomness::seeded(1), Randomness::seeded(2));
        let first = drawn(&one);
        assert_eq!(first, drawn(&same));
        assert_ne!(first, drawn(&other));
        assert_ne!(first, drawn(&one.clone()), "clones draw from the same");
        assert_eq!(drawn(&one), {
            drawn(&same);
            drawn(&same)
        });
    }

    #[test]
    fn what_the_machine_gives_is_never_the_same() {
        assert_ne!(drawn(&Randomness::system()), drawn(&Randomness::system()));
    }

    #[test]
    fn a_fraction_is_less_than_one() {
        for random in [Randomness::seeded(7), Randomness::system()] {
            let fractions: Vec<f64> = (0..1000).map(|_| random.fraction()).collect();
            assert!(fractions.iter().all(|fraction| (0.0..1.0).contains(fraction)));
            assert!(
                fractions.iter().any(|fraction| *fraction < 0.1) && fractions.iter().any(|fraction| *fraction > 0.9)
            );
        }
    }
}
