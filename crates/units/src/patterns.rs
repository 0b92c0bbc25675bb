//! Patterns of names.

/// Whether a name matches a pattern in which each `*` matches any number of characters.
pub fn is_like(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether a name is that of a module such as `model.layers.0.self_attn.q_proj`, or of its last parts, or a pattern of
/// these in which each `*` matches any number of characters.
pub fn is_named(module: &str, name: &str) -> bool {
    let is_at_part = |rest: &str| !name.is_empty() && (rest.is_empty() || rest.ends_with('.'));
    if !name.contains('*') {
        return module.strip_suffix(name).is_some_and(is_at_part);
    }
    let starts = module.match_indices('.').map(|(at, _)| at + 1);
    [0].into_iter().chain(starts).any(|start| is_like(name, &module[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let name = "transformer.h.1.attn.c_attn.weight";
        for (pattern, expected) in [
            (name, true),
            ("*", true),
            ("**", true),
            ("transformer.h.1.*", true),
            ("*.weight", true),
            ("*.h.1.*.weight", true),
            ("*attn*attn*", true),
            ("*attn*attn*attn*", false),
            ("*.bias", false),
            ("h.1.*", false),
            ("transformer", false),
            ("transformer.h.1.attn.c_attn.weight*weight", false),
            ("", false),
        ] {
            assert_eq!(is_like(pattern, name), expected, "{pattern}");
        }
    }

    #[test]
    fn modules_are_named_by_their_last_parts() {
        let module = "model.layers.10.self_attn.q_proj";
        for (name, expected) in [
            ("q_proj", true),
            ("self_attn.q_proj", true),
            (module, true),
            ("proj", false),
            ("0.self_attn.q_proj", false),
            ("layers.10.*", true),
            ("*_proj", true),
            ("layers.1.*", false),
            ("", false),
        ] {
            assert_eq!(is_named(module, name), expected, "{name}");
        }
    }
}
