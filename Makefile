# What people type. The suite itself is tests/run.sh, which CI calls too.
.DEFAULT_GOAL := help
.PHONY: help check quick test demo demo-ovn docs site samples man dist package images

help:   ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile

check:  ## style, types, import rules, house rules; no root
	tests/run.sh check

quick:  ## the same, the rootless tests, and a sample of each kind on a real switch; root, at most three minutes
	tests/run.sh quick

test:   ## everything; root
	tests/run.sh

demo:   ## pods attached, frames between them, the agent killed meanwhile; root
	deploy/demo.sh

demo-ovn:   ## two nodes on OVN from nothing, and a packet's way between their pods; root
	deploy/demo-ovn.sh

docs:   ## links, commands, options, keys and examples of the pages; no root
	deploy/prepare.sh unit
	.venv/bin/python -m tests.lab.house
	.venv/bin/python -m pytest -q $$(grep -rlE --include='test_*.py' 'tests\.lab\.pages|"docs"' tests/unit)

site:   ## the pages as a site in build/site, which needs neither network nor server; no root
	deploy/prepare.sh unit
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict -f docs/site/mkdocs.yml
	@echo "open build/site/index.html with a browser"

samples: ## what the pages show of outputs, written anew where it is no longer what the commands print; root
	RENEW_SAMPLES=1 tests/run.sh cni tests/cni/test_page_commands.py

dist:   ## the archive of the sources and the wheel of this commit in build/dist
	deploy/prepare.sh unit
	.venv/bin/python deploy/dist.py

images: ## the images of deploy/images from this commit, by podman; IMAGES="userspace-cni" builds only that
	deploy/prepare.sh unit
	.venv/bin/python -m deploy.image_builds $(IMAGES)

man:    ## the manual pages in build/man; MANDIR=/usr/local/share/man puts them there
	deploy/prepare.sh unit
	.venv/bin/python -m userspace_cni.cli.manual $(or $(MANDIR),build/man)

package:   ## the Debian package of this commit in build/packages, for this Debian release
	deploy/prepare.sh unit
	.venv/bin/python -m deploy.debian_package
