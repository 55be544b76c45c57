use super::*;

const HANDSHAKE: Handshake = Handshake {
    hello: Hello {
        versions: VERSIONS,
        generation: Generation(3),
        from: WorkerId(1),
        to: WorkerId(2),
        nonce: [7; 32],
        encrypted: true,
    },
    version: VERSIONS.newest,
    nonce: [9; 32],
    binding: Some([5; 32]),
};

#[test]
fn a_hello_and_its_answer_survive_the_wire() {
    let hello = HANDSHAKE.hello;
    let mut wire = Vec::new();
    hello.write(&mut wire).unwrap();
    let read = Hello::read(&mut wire.as_slice()).unwrap();
    assert_eq!(read, Ok((hello, VERSIONS.newest)));
    wire[68] = 2;
    assert!(Hello::read(&mut wire.as_slice()).is_err());
    assert!(Hello::read(&mut [7u8; HELLO_BYTES].as_slice()).is_err());
    let refusals = [
        Refusal::Generation,
        Refusal::Secret,
        Refusal::Versions(VERSIONS),
        Refusal::Encryption,
    ]
    .map(Err);
    let taken = Answer {
        version: VERSIONS.oldest,
        nonce: [5; 32],
    };
    for answer in [Ok(taken)].into_iter().chain(refusals) {
        let mut wire = Vec::new();
        write_answer(&mut wire, answer).unwrap();
        assert_eq!(read_answer(&mut wire.as_slice()).unwrap(), answer);
    }
    assert!(read_answer(&mut [5u8].as_slice()).is_err());
}

fn hello_of(oldest: u32, newest: u32) -> Vec<u8> {
    let mut wire = Vec::new();
    let versions = Versions { oldest, newest };
    let hello = Hello {
        versions,
        ..HANDSHAKE.hello
    };
    hello.write(&mut wire).unwrap();
    wire
}

#[test]
fn neighbouring_dialers_are_accepted() {
    let Versions { oldest, newest } = VERSIONS;
    let spoken = |oldest, newest| {
        let read = Hello::read(&mut hello_of(oldest, newest).as_slice()).unwrap();
        read.map(|(_, version)| version)
    };
    assert_eq!(spoken(oldest - 1, oldest), Ok(oldest), "one release older");
    assert_eq!(spoken(newest, newest + 1), Ok(newest), "one release newer");
    for (oldest, newest) in [(newest + 1, newest + 2), (u32::MAX, newest)] {
        let theirs = Versions { oldest, newest };
        assert_eq!(spoken(oldest, newest), Err(Refusal::Versions(theirs)));
        let mut wire = Vec::new();
        write_answer(&mut wire, Err(Refusal::Versions(theirs))).unwrap();
        let told = read_answer(&mut wire.as_slice()).unwrap();
        assert_eq!(told, Err(Refusal::Versions(VERSIONS)), "the acceptor's own");
    }
    let theirs = Versions {
        oldest: newest + 1,
        newest: newest + 2,
    };
    let said = Refusal::Versions(theirs).to_string();
    assert!(said.contains(&theirs.to_string()) && said.contains(&VERSIONS.to_string()));
}

#[test]
fn old_hello_is_refused_without_waiting() {
    let mut wire = hello_of(8, 8);
    wire[4] = 7;
    wire.truncate(BEGINNING_BYTES);
    let alone = Versions { oldest: 7, newest: 7 };
    let read = Hello::read(&mut wire.as_slice()).unwrap();
    assert_eq!(read, Err(Refusal::Versions(alone)));
}

#[test]
fn answer_with_unknown_version_is_refused() {
    for version in [VERSIONS.oldest - 1, VERSIONS.newest + 1] {
        let answer = Answer {
            version,
            nonce: [5; 32],
        };
        let mut wire = Vec::new();
        write_answer(&mut wire, Ok(answer)).unwrap();
        let error = read_answer(&mut wire.as_slice()).unwrap_err().to_string();
        assert!(error.contains(&format!("takes version {version} ")), "{error}");
    }
}

#[test]
fn a_proof_is_of_one_secret_and_side_and_of_all_that_was_said() {
    let proof = HANDSHAKE.prove("s", Side::Dialer);
    assert!(HANDSHAKE.proves("s", Side::Dialer, &proof));
    assert!(!HANDSHAKE.proves("t", Side::Dialer, &proof));
    assert!(!HANDSHAKE.proves("s", Side::Acceptor, &proof));
    let changed: [fn(&mut Handshake); 11] = [
        |g| g.hello.versions.oldest -= 1,
        |g| g.hello.versions.newest += 1,
        |g| g.version -= 1,
        |g| g.hello.generation = Generation(4),
        |g| g.hello.from = WorkerId(2),
        |g| g.hello.to = WorkerId(1),
        |g| g.hello.nonce[31] ^= 1,
        |g| g.hello.encrypted = false,
        |g| g.nonce[0] ^= 1,
        |g| g.binding = Some([6; 32]),
        |g| g.binding = None,
    ];
    for (i, change) in changed.into_iter().enumerate() {
        let mut other = HANDSHAKE;
        change(&mut other);
        assert!(!other.proves("s", Side::Dialer, &proof), "change {i}");
    }
}
