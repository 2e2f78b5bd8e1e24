# A thin front to meson and ninja. `make run` and `make test` are all a newcomer needs.
BUILD     ?= build
GUEST_DIR ?= $(BUILD)/guest
STATE     ?= /var/lib/space
FUZZ_SECONDS ?= 30
MESON_OPTIONS ?= $(if $(CI),-Dwerror=true)

.PHONY: all run test test-v2 asan bench fuzz install format sanitized setup-build setup-run setup-test guest clean

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja:
	@meson setup $(BUILD) $(MESON_OPTIONS) >/dev/null || { tail -n 20 $(BUILD)/meson-logs/meson-log.txt; exit 1; }

# What is missing is installed, in this order even with -j.
setup-build:
	@scripts/setup/packages.sh build
setup-run:
	@scripts/setup/packages.sh build run
setup-test:
	@scripts/setup/packages.sh build run test
guest:
	@scripts/setup/guest-kernel.sh $(GUEST_DIR)

# Shows SPACE at work: a program in a sandbox of each tier.
run: setup-run
	@$(MAKE) --no-print-directory guest all
	@scripts/demo.sh $(BUILD)/space $(STATE)

# Runs all tests; the last line is "N passed, N failed".
test: setup-test
	@$(MAKE) --no-print-directory guest all sanitized
	@SPACE_ASAN_BUILD=build-asan scripts/run-tests.sh $(BUILD)

# The container tier in an emulated VM with Debian's kernel and cgroup v2 only.
test-v2: setup-test
	@$(MAKE) --no-print-directory all
	@scripts/test-cgroup-v2.sh $(BUILD)

# `make test` with AddressSanitizer and UndefinedBehaviorSanitizer.
asan: setup-test
	@$(MAKE) --no-print-directory guest sanitized
	@scripts/run-tests.sh build-asan

sanitized:
	@$(MAKE) --no-print-directory all BUILD=build-asan \
	    MESON_OPTIONS='-Db_sanitize=address,undefined $(MESON_OPTIONS)'
	@[ -e build-asan/guest ] || ln -s "$(abspath $(GUEST_DIR))" build-asan/guest

# SPACE beside crun and bubblewrap.
bench: setup-run
	@scripts/setup/packages.sh bench
	@$(MAKE) --no-print-directory guest all
	@/usr/bin/python3 bench/bench.py --build $(BUILD)

# Every fuzzer of tests/fuzz for FUZZ_SECONDS.
fuzz: setup-build
	@scripts/setup/packages.sh fuzz
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

install: all guest
	@meson install -C $(BUILD)

format:
	@scripts/setup/packages.sh format
	@find src agent tests -name '*.[ch]' -exec clang-format -i {} +

clean:
	@rm -rf build-asan build-fuzz
	@[ ! -e $(BUILD)/build.ninja ] || ninja -C $(BUILD) -t clean
