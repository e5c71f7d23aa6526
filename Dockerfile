# gpuqueue's programs, for docker-compose.yml. Jobs run in this image too: give what they import as EXTRA_PIP, e.g.
#     docker build --build-arg EXTRA_PIP="torch scikit-learn" -t gpuqueue:local .

FROM python:3.12-slim AS build
WORKDIR /src
# npm brings the third-party parts of the web page, of the versions in package-lock.json.
RUN apt-get update && apt-get install --yes --no-install-recommends npm
COPY pyproject.toml README.md LICENSE hatch_build.py page_parts.py package.json package-lock.json ./
COPY gpuqueue gpuqueue
COPY workers workers
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# Before the wheel, so that a change of gpuqueue does not fetch torch again.
ARG EXTRA_PIP=""
RUN if [ -n "$EXTRA_PIP" ]; then pip install --no-cache-dir $EXTRA_PIP; fi
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/gpuqueue_server-*.whl)[notify,postgres,service]"

# A new volume takes the owner of the directory that it covers, so the state directory must be there and be ours.
ARG USER_ID=10001
RUN useradd --uid "$USER_ID" --create-home gpuqueue \
    && install -d -o gpuqueue -g gpuqueue -m 0700 /var/lib/gpuqueue \
    && install -d -o gpuqueue -g gpuqueue /work
USER gpuqueue
WORKDIR /work

# compute is CUDA, utility is NVML. The driver's libraries come from the host when the container starts.
ENV PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    GPUQUEUE_STATE_DIR=/var/lib/gpuqueue

CMD ["gpuqueue", "--help"]
