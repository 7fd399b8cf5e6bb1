//! `simulate`: plays schedules, and tells what breaks a rule.

#![expect(clippy::print_stdout, reason = "what was found is what this program prints")]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use lockstep_simulation::runs::{self, Plan, Seeds};
use lockstep_simulation::schedule::{Schedule, Seconds};
use lockstep_simulation::seeds::recorded;
use lockstep_simulation::stage::{self, Playing};
use lockstep_simulation::{invariants, panics};

/// A schedule is millions of small pieces of memory: with this one it takes three quarters of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Plays the whole operator against a simulated cluster, schedule by schedule, and checks what must always hold.
#[expect(clippy::struct_excessive_bools, reason = "flags, each with its own name")]
#[derive(Debug, Parser)]
struct Arguments {
    /// How many schedules
    #[arg(long)]
    schedules: Option<u64>,
    /// Only this seed, and its whole story
    #[arg(long, conflicts_with_all = ["schedules", "minutes", "recorded"])]
    seed: Option<u64>,
    /// For so long
    #[arg(long)]
    minutes: Option<f64>,
    /// For so many seconds
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// The recorded seeds, before any others
    #[arg(long)]
    recorded: bool,
    /// The first seed; otherwise new ones each time
    #[arg(long)]
    first: Option<u64>,
    /// How many at the same time; as many as there are cores if not given
    #[arg(long)]
    threads: Option<usize>,
    /// A rule to leave out; also several
    #[arg(long)]
    without: Vec<String>,
    /// A deed or fault to leave out, by its name in the report; also several
    #[arg(long)]
    skip: Vec<String>,
    /// Do not make failing schedules small
    #[arg(long)]
    whole: bool,
    /// With `--seed`: tell every change of an object, on standard error
    #[arg(long)]
    tell: bool,
    /// With `--seed`: what there is at the start
    #[arg(long)]
    scene: bool,
    /// With `--seed`: the operators' logs, on standard error
    #[arg(long)]
    log: bool,
    /// Where to write the results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// The rules, and nothing else
    #[arg(long)]
    rules: bool,
}

/// How many schedules there are if nobody says how many, or how long.
const USUAL: u64 = 1000;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.rules {
        list_rules();
        return ExitCode::SUCCESS;
    }
    panics::note();
    if arguments.log {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .without_time()
            .with_env_filter(std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
            .init();
    }
    let has_failed = match arguments.seed {
        Some(seed) => replay(seed, &arguments),
        None => simulate(&arguments),
    };
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn list_rules() {
    for rule in invariants::AT_EACH_CHANGE {
        println!("{}: {}", rule.name, rule.says);
    }
    for rule in invariants::AT_THE_END {
        println!("{}: {}", rule.name, rule.says);
    }
}

fn playing(arguments: &Arguments) -> Playing {
    Playing {
        without: arguments.without.clone(),
        skipped: arguments.skip.clone(),
        is_told: arguments.tell,
        is_traced: false,
    }
}

/// One seed: its story as it is, and, if it fails, made small.
fn replay(seed: u64, arguments: &Arguments) -> bool {
    let asked = playing(arguments);
    let playing = Playing { is_told: asked.is_told && arguments.whole, is_traced: true, ..asked.clone() };
    let schedule = Schedule::of(seed).skipping(&playing.skipped);
    if arguments.scene {
        println!("{}", schedule.scene.tell());
    }
    let outcome = stage::play(&schedule, &playing);
    let trace = outcome.trace.unwrap_or_default();
    println!("seed {seed}: {} of virtual time, trace {trace:016x}", Seconds(outcome.lasted));
    let Some(violation) = outcome.violation else {
        println!("nothing broke a rule");
        return false;
    };
    println!("{violation}\nnoticed at {}", Seconds(outcome.noticed));
    if !arguments.whole {
        let small = lockstep_simulation::shrink::shrink(&schedule, &violation, outcome.noticed, &playing);
        println!("\n{}", small.tell());
        // The story is shorter than that of all that happened.
        if asked.is_told {
            stage::play(&small.schedule, &asked);
        }
    }
    true
}

fn simulate(arguments: &Arguments) -> bool {
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let longest = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let longest = longest.or(arguments.seconds.map(Duration::from_secs));
    let usual = if longest.is_some() { u64::MAX } else { USUAL };
    let plan = Plan {
        seeds: Seeds::From(arguments.first.unwrap_or_else(fresh_seed)),
        most: arguments.schedules.unwrap_or(usual),
        longest,
        threads,
        playing: playing(arguments),
        shrinks: !arguments.whole,
    };
    let mut results = Vec::new();
    if arguments.recorded {
        let seeds = recorded().into_iter().map(|(seed, _)| seed).collect();
        results.push(play(&Plan { seeds: Seeds::These(seeds), most: u64::MAX, longest: None, ..plan.clone() }));
    }
    if !arguments.recorded || arguments.schedules.is_some() || longest.is_some() {
        results.push(play(&plan));
    }
    for result in &results {
        print!("{}", result.coverage.table(result.took, threads));
        for (rule, seeds) in &result.failures {
            let shown: Vec<String> = seeds.iter().take(10).map(u64::to_string).collect();
            println!("\n{rule}: broken {} times, by the seeds {}", seeds.len(), shown.join(", "));
        }
    }
    let told = results.iter().map(|result| json(result, threads)).collect::<Vec<_>>();
    if let Some(file) = &arguments.json
        && let Err(error) = std::fs::write(file, serde_json::json!(told).to_string())
    {
        println!("{} cannot be written: {error}", file.display());
        return true;
    }
    results.iter().any(|result| !result.failures.is_empty())
}

fn play(plan: &Plan) -> runs::Result {
    runs::run(plan, |story| {
        // Nobody may be listening any more.
        let _ = writeln!(std::io::stdout().lock(), "\n{}", story.tell());
    })
}

fn json(result: &runs::Result, threads: usize) -> serde_json::Value {
    let mut told = result.coverage.json(result.took, threads);
    told["failures"] = serde_json::json!(result.failures);
    told["stories"] = result.stories.iter().map(lockstep_simulation::shrink::Shrunk::tell).collect::<Vec<_>>().into();
    told
}

/// New schedules each time: the seed is told with each failure.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs().wrapping_mul(1_000_000)
}
