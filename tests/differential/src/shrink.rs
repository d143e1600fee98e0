//! Makes a failing program as small as it can be.

use serde_json::Value;

use crate::program::{Program, Step};

/// Tries smaller and smaller programs as long as `fails` says that they fail too, at most `tries` times.
pub(crate) fn shrink(
    program: &Program,
    mut tries: usize,
    mut fails: impl FnMut(&Program) -> bool,
) -> Program {
    let mut best = program.clone();
    let mut attempt = |candidate: Program, best: &mut Program| {
        if tries == 0 || candidate == *best {
            return false;
        }
        tries -= 1;
        let smaller = fails(&candidate);
        if smaller {
            *best = candidate;
        }
        smaller
    };
    let mut size = best.len().div_ceil(2);
    loop {
        let mut removed = false;
        let mut at = best.len();
        while at > 0 {
            let from = at.saturating_sub(size);
            let candidate = [&best[..from], &best[at..]].concat();
            removed |= attempt(candidate, &mut best);
            at = from;
        }
        if size == 1 && !removed {
            break;
        }
        size = if removed { size } else { size.div_ceil(2).min(size - 1).max(1) };
    }
    for at in 0..best.len() {
        let mut simplified = true;
        while simplified {
            simplified = simpler_steps(&best[at]).into_iter().any(|simpler| {
                let mut candidate = best.clone();
                candidate[at] = simpler;
                attempt(candidate, &mut best)
            });
        }
    }
    best
}

/// The step without each of its optional parts in turn.
fn simpler_steps(step: &Step) -> Vec<Step> {
    let Ok(Value::Object(fields)) = serde_json::to_value(step) else { return Vec::new() };
    let mut simpler = Vec::new();
    for (key, value) in &fields {
        let mut without = fields.clone();
        without.remove(key);
        simpler.push(without);
        if let Value::Object(inner) = value {
            for part in inner.keys() {
                let mut fewer = inner.clone();
                fewer.remove(part);
                let mut changed = fields.clone();
                changed.insert(key.clone(), Value::Object(fewer));
                simpler.push(changed);
            }
        }
    }
    // What lacks a part that is needed is no step.
    simpler.into_iter().filter_map(|fields| serde_json::from_value(Value::Object(fields)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::generate;
    use crate::program::Op;

    #[test]
    fn shrinking_keeps_only_the_necessary_steps() {
        let is_wanted = |step: &Step| matches!(&step.op, Op::Publish(publish) if publish.mandatory);
        let program = (0..).map(generate).find(|program| program.iter().any(is_wanted)).unwrap();
        let small = shrink(&program, 1000, |candidate| candidate.iter().any(is_wanted));
        assert_eq!(small.len(), 1);
        let text = crate::program::to_text(&small);
        assert_eq!(text, "{\"op\":\"publish\",\"key\":\"\",\"mandatory\":true}\n");
    }
}
