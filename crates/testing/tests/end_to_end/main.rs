//! The end-to-end tests: one program, because most of its building would be the same for each file. One file is one subject; what
//! each needs of the cluster is in Cargo.toml.

mod argo;
mod audit;
mod bounds;
mod canaries;
mod chart;
mod cli;
mod cluster;
mod docs;
mod installs;
mod joining;
mod kills;
mod meddling;
mod outage;
mod pins;
mod policies;
mod releases;
mod stories;
mod storms;
mod truth;
mod versions;
