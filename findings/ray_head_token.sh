#!/usr/bin/env bash
# ray 2.60.0: after a local ray.init(), a head started by the same user refuses whoever names its address.
#
# The first local ray.init() of a user writes ~/.ray/auth_token. From then on, `ray start --head` asks for this token if
# RAY_AUTH_MODE is not set. A driver that finds the cluster by itself (address="auto") sends it. A driver that names the
# address, and `ray start --address`, which brings a host into the cluster, do not, although the same file is there: they
# end as if nobody answered. Without the file, the same commands work. RAY_AUTH_MODE=token before them sends the token.
#
# Fails if that changes. Output seen on 2026-11-30:
#   no token was ever written: driver connected, host joined
#   after a local ray.init(): driver AuthenticationError, host AuthenticationError
#   the same, address="auto": driver connected
#   the same, RAY_AUTH_MODE=token: driver connected, host joined
set -euo pipefail
folder=$(mktemp -d /tmp/rt.XXXX)
stop() { pkill -9 -f "$folder/(venv|ray)" || true; sleep 1; }
trap 'stop; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
unset RAY_AUTH_MODE RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH
export HOME="$folder/home" RAY_DISABLE_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
mkdir "$HOME"
ray="$folder/venv/bin/ray"
port=26379

head() {
  "$ray" start --head --port=$port --num-cpus=1 --include-dashboard=false --temp-dir="$folder/ray" > "$folder/log" 2>&1
}

driver() {
  if "$folder/venv/bin/python" -c "import ray; ray.init(address='$1')" > "$folder/log" 2>&1; then
    echo "driver connected"
  else
    echo "driver $(grep -om1 AuthenticationError "$folder/log")"
  fi
}

host() {
  if "$ray" start --address=127.0.0.1:$port --num-cpus=1 > "$folder/log" 2>&1; then
    echo "host joined"
  else
    echo "host $(grep -om1 AuthenticationError "$folder/log")"
  fi
}

{
  head
  echo "no token was ever written: $(driver 127.0.0.1:$port), $(host)"
  stop

  "$folder/venv/bin/python" -c "import ray; ray.init(num_cpus=1, include_dashboard=False); ray.shutdown()" > "$folder/log" 2>&1
  head
  echo "after a local ray.init(): $(driver 127.0.0.1:$port), $(host)"
  echo "the same, address=\"auto\": $(driver auto)"
  export RAY_AUTH_MODE=token
  echo "the same, RAY_AUTH_MODE=token: $(driver 127.0.0.1:$port), $(host)"
} | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
no token was ever written: driver connected, host joined
after a local ray.init(): driver AuthenticationError, host AuthenticationError
the same, address="auto": driver connected
the same, RAY_AUTH_MODE=token: driver connected, host joined
EXPECTED
