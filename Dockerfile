# The image: one static binary on nothing. No shell, not root, the root file system may be read-only.
FROM rust:1.95-bookworm AS build
WORKDIR /lockstep
COPY . .
# No path of the builder's in the binary: the same sources give the same bytes (`make reproducible`).
RUN RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$CARGO_HOME=/cargo" \
    cargo build --release --locked --target "$(rustc -vV | sed -n 's/^host: //p')" \
 && mv target/*/release/lockstep /usr/local/bin/lockstep

FROM scratch
# for registries whose certificates a public authority has signed
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /usr/local/bin/lockstep /lockstep
USER 65532:65532
ENTRYPOINT ["/lockstep"]
