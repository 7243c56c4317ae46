{
  description = "The first-order linear recurrence in PyTorch, with Triton kernels: environments and commands";

  # torch and triton come as wheels from requirements/ (nixpkgs' own are older than the project needs), the rest from
  # nixpkgs. The lock of the image is for Linux on x86_64, and so is this flake.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.11";

  outputs = { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};

      # What figures, tables and PDF need; they need no torch.
      latex = pkgs.texlive.combine {
        inherit (pkgs.texlive) scheme-small latexmk collection-latexrecommended collection-fontsrecommended;
      };
      plotting = pkgs.python312.withPackages (packages: [ packages.matplotlib packages.pandas packages.pyyaml ]);

      # gcc: Triton and torch.compile call it when they run.
      tools = [ pkgs.python312 pkgs.uv pkgs.gcc pkgs.gnumake pkgs.git latex ];

      # Wheels are built for other Linux systems and look for these where NixOS has none.
      libraries = pkgs.lib.makeLibraryPath [ pkgs.stdenv.cc.cc.lib pkgs.zlib ];

      # The Makefile's own environment, .venv from requirements/dev.txt.
      cpuEnvironment = ''
        export LD_LIBRARY_PATH=${libraries}''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export UV_PYTHON_DOWNLOADS=never
      '';

      # The driver is the host's, never one from the store: it has to fit the host's kernel module. On NixOS and WSL it
      # lies in a folder of its own, all of which it needs. Elsewhere it lies among the host's other libraries, which must not be put before those of the
      # store: a folder with links to the driver alone takes their place. Triton is told where it is, because it would
      # ask ldconfig, which NixOS lacks.
      hostDriver = ''
        driver=
        for folder in /run/opengl-driver/lib /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib; do
          if [ -e "$folder/libcuda.so.1" ]; then driver=$folder; break; fi
        done
        if [ -z "$driver" ]; then
          echo "No NVIDIA driver was found on this host: tests and figures work, GPU measurements do not." >&2
        else
          case $driver in
            /run/opengl-driver/lib | /usr/lib/wsl/lib) ;;
            *)
              links=''${XDG_RUNTIME_DIR:-''${TMPDIR:-/tmp}}/linear-scan-driver-$(id -u)
              mkdir -p "$links"
              ln -sf "$driver"/libcuda.so* "$driver"/libnvidia-*.so* "$links/"
              driver=$links
              ;;
          esac
          export TRITON_LIBCUDA_PATH=$driver LD_LIBRARY_PATH=$driver''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        fi
      '';

      # The image's environment: .venv-cuda from the hash lock, made anew when the lock changes.
      cudaEnvironment = cpuEnvironment + hostDriver + ''
        if ! cmp -s requirements/image.txt .venv-cuda/lock; then
          uv venv --clear --python ${pkgs.python312}/bin/python3.12 .venv-cuda
          uv pip install --python .venv-cuda --no-deps --require-hashes --requirement requirements/image.build.txt
          uv pip install --python .venv-cuda --no-deps --require-hashes --no-build-isolation \
            --requirement requirements/image.txt
          cp requirements/image.txt .venv-cuda/lock
        fi
        export PATH=$PWD/.venv-cuda/bin:$PATH
      '';

      # A command in a checkout: the image's environment where the host has a driver, else the Makefile's.
      command = verb: {
        type = "app";
        program = "${pkgs.writeShellScript "linear-scan-${verb}" ''
          set -euo pipefail
          export PATH=${pkgs.lib.makeBinPath tools}:$PATH
          if [ ! -e requirements/image.txt ]; then
            echo "error: Expected a checkout of linear-scan as the current folder: change to one first." >&2
            exit 2
          fi
          ${cpuEnvironment}
          ${hostDriver}
          if [ -z "$driver" ]; then exec make ${verb}; fi
          ${cudaEnvironment}
          exec make ${verb} PY=python
        ''}";
      };

      check = name: inputs: script: pkgs.runCommand "linear-scan-${name}" { nativeBuildInputs = inputs; } script;
    in
    {
      devShells.${system} = {
        # `nix develop`, then `make test`.
        default = pkgs.mkShell { packages = tools; shellHook = cpuEnvironment; };
        # `nix develop .#cuda`, then `python -m experiments.smoke`. warp is measured where CUDA_HOME names the host's CUDA
        # toolkit, version 13.0.
        cuda = pkgs.mkShell { packages = tools ++ [ pkgs.ninja ]; shellHook = cudaEnvironment; };
      };

      apps.${system} = {
        reproduce = command "reproduce";
        test = command "test";
      };

      checks.${system} = {
        dockerfile = check "dockerfile" [ pkgs.hadolint ] "hadolint ${self}/Dockerfile && touch $out";
        # Outside of a Git repository actionlint does not look for its configuration.
        workflows = check "workflows" [ pkgs.actionlint ] ''
          actionlint -config-file ${self}/.github/actionlint.yaml ${self}/.github/workflows/*.yml
          touch $out
        '';
        paper = check "paper" [ plotting latex ] ''
          cd ${self}
          export HOME=$TMPDIR MPLCONFIGDIR=$TMPDIR PYTHONDONTWRITEBYTECODE=1
          python -m paper --out $out
        '';
      };
    };
}
