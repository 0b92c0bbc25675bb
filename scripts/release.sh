#!/usr/bin/env bash
# Builds a release for this system: an archive with the binary, completions and manual pages, a Debian package if
# `cargo-deb` is installed, and their checksums, in target/dist.
#
# usage:  scripts/release.sh
# needs:  Rust; `cargo install cargo-deb` for the package
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(cargo metadata --no-deps --format-version 1 --locked | sed -n 's/.*"name":"plimsoll","version":"\([^"]*\)".*/\1/p')
target=$(rustc -vV | sed -n 's/^host: //p')
name="plimsoll-$version-$target"
folder="target/dist/$name"

echo "building $name"
cargo build --release --locked -p plimsoll
rm -rf target/dist
mkdir -p "$folder/completions"
install -m 755 target/release/plimsoll "$folder/plimsoll"
strip "$folder/plimsoll"
install -m 644 LICENSE NOTICE README.md "$folder"
for shell in bash zsh fish powershell; do
    "$folder/plimsoll" completions "$shell" > "$folder/completions/plimsoll.$shell"
done
"$folder/plimsoll" man "$folder/man"

# Reproducible archive: sorted, without owners, with the commit's time.
time=$(git log -1 --format=%ct 2>/dev/null || echo 0)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -C target/dist -cf - "$name" \
    | gzip --no-name -9 > "target/dist/$name.tar.gz"

if cargo deb --version > /dev/null 2>&1; then
    # cargo-deb takes its assets (crates/plimsoll/Cargo.toml) from here.
    rm -rf target/dist/package
    cp -r "$folder" target/dist/package
    gzip --no-name -9 target/dist/package/man/*.1
    SOURCE_DATE_EPOCH=$time cargo deb --no-build --no-strip --locked -p plimsoll --output target/dist/
    rm -rf target/dist/package
else
    echo "no Debian package: run `cargo install cargo-deb` to build one"
fi

rm -rf "$folder"
(cd target/dist && sha256sum -- *.tar.gz $(ls -- *.deb 2>/dev/null) > SHA256SUMS && cat SHA256SUMS)
