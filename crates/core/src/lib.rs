//! The domain of Lockstep: decisions as pure functions. No async, no client, no clock.
