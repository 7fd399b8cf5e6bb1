//! The custom resources of Lockstep.
