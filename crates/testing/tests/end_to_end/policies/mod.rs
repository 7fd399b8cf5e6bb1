//! The admission policies of the chart, on a real API server: they do exactly what the functions of the core say.

mod configs;
mod cost;
mod pods;
mod shape;
mod stage;
mod workloads;
