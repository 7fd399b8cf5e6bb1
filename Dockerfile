# The image of lockstep, for everyone with Docker: docker build --tag lockstep .
# Without Docker, `cargo xtask image build --release` makes the same image.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# .cargo/config.toml makes it a static program.
RUN cargo build --release --locked --package lockstep-cli --bin lockstep \
 && mv target/*/release/lockstep /lockstep

FROM scratch
COPY --from=build /lockstep /lockstep
USER 65532:65532
ENTRYPOINT ["/lockstep"]
