//! Creates the definitions that one side lacks.

use serde_json::json;
use server::MoveDirection;

use super::Migrate;
use super::definitions::DefinitionPlan;
use crate::Failure;
use crate::ctl::api::path;

impl Migrate<'_> {
    /// Definitions that the other broker is known to refuse.
    pub(super) fn refused_in_advance(&self, plan: &DefinitionPlan) -> Result<Vec<String>, Failure> {
        let overview = self.target().get("/api/overview")?;
        let types: Vec<_> = overview["exchange_types"].as_array().into_iter().flatten().collect();
        let has = |name: &str| types.is_empty() || types.iter().any(|kind| kind["name"] == name);
        let exchanges =
            plan.missing.iter().filter_map(|definition| Some((definition, definition.type_name()?)));
        let unknown = exchanges.filter(|(_, kind)| !has(kind));
        Ok(unknown
            .map(|(definition, kind)| format!("{}: no type '{kind}' there", definition.line()))
            .collect())
    }

    /// Creates what is missing, and lists all that is refused before anything is moved. Returns the queues, by virtual host and
    /// name, that could not be created.
    ///
    /// # Errors
    ///
    /// One side does not answer; or this is the first time, and something is refused.
    pub(super) fn define(&self, is_first: bool) -> Result<Vec<Vec<String>>, Failure> {
        let mut skipped = Vec::new();
        let plan = self.plan()?;
        let mut refused = plan.conflicting.clone();
        let mut made = 0;
        let mut is_granted = false;
        for definition in &plan.missing {
            if !definition.is_vhost() && !std::mem::replace(&mut is_granted, true) {
                self.grant()?;
            }
            match definition.make(self.target()) {
                Ok(()) => made += 1,
                // Listed as refused, it would be missing for good.
                Err(failure @ Failure::Passing(_)) if !is_first => return Err(failure),
                Err(failure) => {
                    refused.push(format!("{}: {}", definition.line(), failure.into_line()));
                    if definition.kind == "queue" {
                        skipped.push(definition.names.clone());
                    }
                }
            }
        }
        for line in &plan.different {
            self.output.remark(&format!("{line}; it stays as it is there"))?;
        }
        for line in &plan.left_out {
            self.output.remark(&format!("{line} does not move: only a broker gives such names"))?;
        }
        if !is_granted {
            self.grant()?;
        }
        let present: usize = plan.present.values().sum();
        self.output.remark(&format!("created {made} definitions, {present} already exist"))?;
        for line in &refused {
            self.output.remark(&format!("refused: {line}"))?;
        }
        if refused.is_empty() || self.command.skip_refused || !is_first {
            return Ok(skipped);
        }
        Err(Failure::Run(format!(
            "{} definitions are refused, and no message is moved; --skip-refused continues without them",
            refused.len()
        )))
    }

    /// Gives the logins the permissions that moving and defining need, in virtual hosts where they have none.
    fn grant(&self) -> Result<(), Failure> {
        let sides = [(&self.other, " there"), (self.api, "")];
        for (api, side) in sides.into_iter().take(if self.way == MoveDirection::Out { 1 } else { 2 }) {
            let (vhosts, user) = (api.get("/api/vhosts")?, api.user());
            for vhost in vhosts.as_array().into_iter().flatten().filter_map(|vhost| vhost["name"].as_str()) {
                let path = path(&["permissions", vhost, user]);
                if api.found(&path)?.is_none() {
                    api.put(&path, &json!({ "configure": ".*", "write": ".*", "read": ".*" }))?;
                    let line = format!("user '{user}' has all permissions in virtual host '{vhost}'{side}");
                    self.output.remark(&line)?;
                }
            }
        }
        Ok(())
    }
}
