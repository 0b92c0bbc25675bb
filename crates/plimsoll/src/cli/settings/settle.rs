//! Which value applies if a file sets something twice, by the rules of the trainers that such files are for.

use super::file::{File, Set};
use super::problems::Problem;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Keys that override other keys of the same setting, in decreasing priority.
const DECIDING: &[&str] = &[
    "save_strategy",
    "eval_strategy",
    "evaluation_strategy",
    "cosine_min_lr_ratio",
    "lr_scheduler_kwargs.min_lr_rate",
    "lr_scheduler_kwargs.min_lr_ratio",
    "final_lr_part",
    "lr_scheduler_type",
    "lr_scheduler",
    "neat_packing",
    "pref_loss",
    "fp8",
    "enable_fp8_training",
    "float8_training",
    "pure_bf16",
    "wandb_mode",
    "report_to",
    "log_to",
];

/// Lists whose values may be under several keys, all of which count.
const LISTS: &[&str] = &["data", "lora_targets", "lora_modules_to_save"];

/// Adapters in all linear layers.
const ALL_LINEAR: &str = "all-linear";

/// Names of layers in torchtune, and in models' files.
const TORCHTUNE_LAYERS: &[(&str, &str)] =
    &[("output_proj", "o_proj"), ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")];

/// Why the overridden keys change nothing.
const DECIDED: &str = "another key overrides it";
const STEPS_COUNT: &str = "`max_steps` ends the run";
const OTHER_WARMUP: &str = "another key sets the warm-up";

impl File {
    /// Keeps each setting once, and one of those that exclude each other.
    pub(super) fn settle(&mut self) {
        LISTS.iter().for_each(|flag| self.join(flag));
        self.settle_adapters();
        self.leave_each_once();
        self.settle_warmup();
        let has_steps = self.sets.iter().any(|set| set.flag == "max_steps");
        self.leave_out(STEPS_COUNT, |set| has_steps && set.flag == "epochs");
    }

    /// Joins the values of several keys for one list.
    fn join(&mut self, flag: &str) {
        let (same, others): (Vec<_>, Vec<_>) = self.sets.drain(..).partition(|set| set.flag == flag);
        self.sets = others;
        let values = same.iter().flat_map(|set| set.values.clone()).collect();
        self.sets.extend(same.into_iter().next().map(|first| Set { values, ..first }));
    }

    /// The targets of adapters as Plimsoll names them. PEFT's own settings of adapters, which have no key for the method, are
    /// for adapters.
    fn settle_adapters(&mut self) {
        if let Some(targets) = self.sets.iter_mut().find(|set| set.flag == "lora_targets") {
            if targets.values.iter().any(|name| name == ALL_LINEAR) {
                targets.values = vec![ALL_LINEAR.to_owned()];
            }
            let own = |name: &mut String| {
                if let Some((_, own)) = TORCHTUNE_LAYERS.iter().find(|(other, _)| name == other) {
                    (*own).clone_into(name);
                }
            };
            targets.values.iter_mut().for_each(own);
        }
        let rank = self.sets.iter().find(|set| set.flag == "lora_rank" && set.key == "r");
        if let Some(rank) = rank.filter(|_| !self.sets.iter().any(|set| set.flag == "method")) {
            let (flag, values) = ("method".to_owned(), vec!["lora".to_owned()]);
            self.sets.push(Set { flag, values, key: rank.key.clone(), line: rank.line, gives_way_to: vec![] });
        }
    }

    fn leave_each_once(&mut self) {
        let mut once: BTreeMap<String, Set> = BTreeMap::new();
        let mut decided = Vec::new();
        let place = |set: &Set| DECIDING.iter().position(|key| *key == set.key).unwrap_or(DECIDING.len());
        for set in std::mem::take(&mut self.sets) {
            let Some(first) = once.get(&set.flag) else {
                once.insert(set.flag.clone(), set);
                continue;
            };
            match place(first).cmp(&place(&set)) {
                _ if is_same(&first.values, &set.values) => {}
                Ordering::Less => decided.push(set.key),
                Ordering::Greater => {
                    decided.push(first.key.clone());
                    once.insert(set.flag.clone(), set);
                }
                Ordering::Equal => {
                    let (what, hint) = twice(first, &set);
                    let hint = Some(hint.to_owned());
                    self.problems.push(Problem { line: set.line, what, hint, gives_way_to: vec![] });
                }
            }
        }
        self.sets = once.into_values().collect();
        // A key that another setting uses still changes something.
        decided.retain(|key| !self.sets.iter().any(|set| set.key == *key));
        self.ignored.extend(decided.into_iter().map(|key| (key, DECIDED)));
    }

    /// Steps of warm-up apply if there are any, otherwise the fraction; a fraction may be given as the number of steps.
    fn settle_warmup(&mut self) {
        let is_fraction = |set: &Set| {
            let number = set.values[0].parse::<f64>();
            set.flag == "warmup_steps" && number.is_ok_and(|number| number > 0.0 && number < 1.0)
        };
        let has_ratio = self.sets.iter().any(|set| set.flag == "warmup_ratio");
        if let Some(set) = self.sets.iter_mut().find(|set| is_fraction(set)).filter(|_| !has_ratio) {
            set.flag = "warmup_ratio".to_owned();
        }
        let steps = self.sets.iter().find(|set| set.flag == "warmup_steps");
        let ratio_counts = steps.is_some_and(|steps| steps.values == ["0"] && !DECIDING.contains(&steps.key.as_str()));
        let has_both = has_ratio && steps.is_some();
        let loser = if ratio_counts { "warmup_steps" } else { "warmup_ratio" };
        self.leave_out(OTHER_WARMUP, |set| has_both && set.flag == loser);
    }

    fn leave_out(&mut self, why: &'static str, is_left_out: impl Fn(&Set) -> bool) {
        let (out, left) = self.sets.drain(..).partition(|set| is_left_out(set));
        self.sets = left;
        let out: Vec<Set> = out;
        self.ignored.extend(out.into_iter().map(|set| (set.key, why)));
    }
}

/// The problem of two values for one setting, and what to do.
fn twice(first: &Set, second: &Set) -> (String, &'static str) {
    let said = |set: &Set| format!("`{}: {}` in line {}", set.key, set.values.join(", "), set.line);
    let both = format!("{} and {}", said(first), said(second));
    if first.key == second.key && first.key.contains('.') {
        let what = format!("`{}` is one setting for all data sets, but has two values: {both}", first.flag);
        return (what, "give it one value, and change the files of the other data set to fit");
    }
    (format!("`{}` is set twice, to different values: {both}", first.flag), "omit one of them")
}

/// Whether values are equal, as text or as numbers.
fn is_same(first: &[String], second: &[String]) -> bool {
    let number = |text: &String| text.parse::<f64>().ok();
    let same = |(a, b): (&String, &String)| a == b || number(a).is_some_and(|a| number(b) == Some(a));
    first.len() == second.len() && first.iter().zip(second).all(same)
}
