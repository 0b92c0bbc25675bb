//! Views: values in; text, tables, SVG, HTML and JSON out. One file per view. Nothing here uses files, the network or a
//! terminal.

mod compare_table;
mod comparison;
mod curve;
mod doctor;
mod estimate;
mod figures;
mod gpus;
mod gpus_csv;
mod gpus_now;
mod health;
#[cfg(unix)]
mod kept_run;
mod listed_run;
mod models;
mod page;
mod picture;
mod plan_json;
mod plan_table;
mod printable;
mod profile;
mod replay;
mod run_page;
#[cfg(unix)]
mod runs;
mod self_test;
mod stress;
mod summary;

pub use compare_table::{ComparedPlan, compare_table};
pub use comparison::{comparison_json, comparison_table};
pub use curve::{curve_json, curve_svg, curve_table};
pub use doctor::{
    BlasFindings, CardFindings, Diagnosis, DriverFindings, FolderFindings, LibraryInUse, diagnosis_text, held_by,
};
pub use estimate::{
    EstimateCard, EstimateReport, EstimateWay, changed_words, estimate_json, estimate_text, estimate_warnings,
};
pub use gpus::{gpus_table, known_cards_table};
pub use gpus_csv::GpusCsv;
pub use gpus_now::gpus_now;
pub use health::{health_event, health_line};
#[cfg(unix)]
pub use kept_run::{KeptRun, kept_run_json, kept_run_markdown};
#[cfg(unix)]
pub use listed_run::{ListedRun, Speed};
pub use models::{LeastMemory, ListedModel, models_table};
pub use picture::{PlanPage, plan_html, plan_svg};
pub use plan_json::{PlanReport, plan_json};
pub use plan_table::{as_flags, grouped, levers_table, moment_text, plan_table, products_named};
pub use printable::{printable, printable_line};
pub use profile::{Best, StepProfile};
pub use replay::{ReplayReport, replay_html, replay_json, replay_svg, replay_text};
pub use run_page::{CardStory, RunStory, run_html, run_markdown};
pub use runs::{runs_json, runs_table};
pub use self_test::{LibraryFindings, MemoryFindings, SelfTest, TestedCard, self_test_text};
pub use stress::{StressReport, metric_name, stress_html, stress_json, stress_text};
pub use summary::{closing, memory, memory_name, sample_text, summary};
