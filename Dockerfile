# The image of lockstep, for everyone with Docker: docker build --tag lockstep .
# Without Docker, `cargo xtask image build` makes the same image.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked \
      --target "$(rustc -vV | sed -n 's/^host: //p')" --package lockstep-cli --bin lockstep \
 && mv target/*/release/lockstep /lockstep

FROM scratch
COPY --from=build /lockstep /lockstep
USER 65532:65532
ENTRYPOINT ["/lockstep"]
